"""The Responses API of OpenAI: a request carries its conversation, or names the response that it goes on with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import anyio
import attrs
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._reading import Kind, any_text, anything, choice, flag, object_with, option, optional
from amplifier.live import ClientLeft, LiveRun, with_results
from amplifier.live._client_tools import WAITING
from amplifier.models import ToolCall

from ._agents import Agents, Ask
from ._event_stream import EventStream, LongResponse, event, follow_run
from ._history import read_messages, split_conversation
from ._limits import read_json
from ._openai_request import (
    Conversation,
    Outcome,
    Parameters,
    effort_kind,
    format_kind,
    limit_kind,
    read_parameters,
    unsupported,
    watch,
)
from ._problems import Problem, problem_of, read_body

__all__ = ["responses_routes"]


def responses_routes(agents: Agents) -> list[Route]:
    """``/v1/responses``."""

    async def create(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        asked = read_parameters(_Body, body, agents.name)
        if asked.background and asked.store is False:
            message = "background: expected null or false without store, because the response has to be kept"
            raise Problem(400, message, code="invalid_request", param="background")
        if asked.background:  # its answer comes before its turn begins
            agents.turns.require_room()
        conversation = _conversation(asked, agents)
        response = _Response(body, asked, conversation, conversation.ask(asked, asked.schema), agents)

        async def work(stream: EventStream) -> Response | None:
            name = response.name if asked.store is not False else None
            run = agents.runs.start(response.run, response, stays=None if asked.background else 0, name=name)
            if asked.background and not asked.stream:
                return JSONResponse(response.body())
            await follow_run(run, 0, stream if asked.stream else None)
            return None if asked.stream else JSONResponse(response.body())

        return LongResponse(work, agents.limits.send_seconds)

    def find(request: Request) -> LiveRun[_Response]:
        found = agents.runs.find(request.path_params["name"])
        if found is None:
            raise _unknown(request.path_params["name"], 404)
        return found

    async def retrieve(request: Request) -> Response:
        run, given = find(request), read_body(_Query, dict(request.query_params))
        if given.stream != "true":
            return JSONResponse(run.about.body())

        async def work(stream: EventStream) -> None:
            await follow_run(run, int(given.starting_after or -1) + 1, stream)

        return LongResponse(work, agents.limits.send_seconds)

    async def cancel(request: Request) -> Response:
        run = find(request)
        if not run.about.is_background:
            message = "only a response that was asked for with background can be cancelled; another one ends with its connection"
            raise Problem(400, message, code="invalid_request")
        await run.cancel()
        return JSONResponse(run.about.body())

    async def delete(request: Request) -> Response:
        name = request.path_params["name"]
        if (run := agents.runs.find(name)) is not None:
            await run.cancel()
        if not any([agents.runs.forget(name), agents.kept.forget(name)]):
            raise _unknown(name, 404)
        return JSONResponse({"id": name, "object": "response.deleted", "deleted": True})

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/{name}", retrieve, methods=["GET"]),
        Route("/v1/responses/{name}", delete, methods=["DELETE"]),
        Route("/v1/responses/{name}/cancel", cancel, methods=["POST"]),
    ]


@attrs.frozen(kw_only=True)
class _Query:
    """How a response is retrieved."""

    stream: str | None = option(optional(choice("true", "false")), None)
    starting_after: str | None = option(
        optional(Kind("the sequence_number of an event", lambda value: value.isdecimal() and len(value) < 10)), None
    )
    include_obfuscation: str | None = option(optional(choice("false")), None)


@attrs.frozen(kw_only=True)
class _Body(Parameters):
    input: Any = option(anything, None)
    instructions: str | None = option(optional(any_text), None)
    previous_response_id: str | None = option(optional(any_text), None)
    store: bool | None = option(optional(flag), None)
    max_output_tokens: int | None = option(limit_kind, None)
    reasoning: Any = option(
        optional(
            object_with(
                {
                    "effort": effort_kind,
                    "summary": optional(
                        Kind("auto, concise or detailed", lambda v: v in ("auto", "concise", "detailed"))
                    ),
                }
            )
        ),
        None,
    )
    text: Any = option(optional(object_with({"format": format_kind, "verbosity": unsupported("medium")})), None)
    stream_options: Any = option(optional(object_with({"include_obfuscation": unsupported(False)})), None)
    truncation: Any = option(unsupported("disabled"), None)
    include: Any = option(unsupported([]), None)
    background: bool | None = option(optional(flag), None)
    conversation: Any = option(unsupported(), None)
    max_tool_calls: Any = option(unsupported(), None)
    prompt: Any = option(unsupported(), None)
    context_management: Any = option(unsupported([]), None)

    @property
    def schema(self) -> dict[str, Any] | None:
        """JSON Schema of the answer."""
        found: dict[str, Any] | None = (self.text or {}).get("format")
        return found

    def settings(self) -> dict[str, Any]:
        more = {"max_output_tokens": self.max_output_tokens, "reasoning_effort": (self.reasoning or {}).get("effort")}
        return {**super().settings(), **{name: value for name, value in more.items() if value is not None}}


# ── the conversation ──


def _conversation(asked: _Body, agents: Agents) -> Conversation:
    items = [{"role": "user", "content": asked.input}] if isinstance(asked.input, str) else asked.input
    messages = [_message(item, index) for index, item in enumerate(items)] if isinstance(items, list) else items
    read = read_messages(messages, "input")
    found = (
        Conversation.read(read, "input", agents)
        if asked.previous_response_id is None
        else _continued(read, asked.previous_response_id, agents)
    )
    if asked.instructions is None:
        return found
    return attrs.evolve(found, history=[_instructions(asked.instructions), *found.history])


def _instructions(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _message(item: Any, index: int) -> Any:
    """An item as a message, in the spelling of chat completions."""
    if not isinstance(item, Mapping):
        return item
    match item.get("type", "message"):
        case "message":
            return {name: value for name, value in item.items() if name in ("role", "content")}
        case "reasoning":
            return {"role": "reasoning"}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            return {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "function": function}]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    expected = "expected message, reasoning, function_call or function_call_output"
    where = f"input[{index}].type"
    raise Problem(400, f"{where}: {expected}, got {item.get('type')!r:.80}", code="invalid_messages", param=where)


def _continued(read: list[dict[str, Any]], name: str, agents: Agents) -> Conversation:
    """What follows a response that is kept: results of its calls, or more messages."""
    kept, run = agents.kept.find(name), agents.runs.find(name)
    if kept is None and run is not None and not run.over.is_set():
        message = f"previous_response_id: {name} is not over yet"
        raise Problem(409, message, code="response_in_progress", param="previous_response_id")
    if kept is None:
        raise _unknown(name, 400)
    own = {call["id"] for message in read for call in message.get("tool_calls", ())}
    results = {each["tool_call_id"]: each["content"] for each in read if each["role"] == "tool"}
    results = {call: result for call, result in results.items() if call not in own}
    rest = [each for each in read if each["role"] != "tool" or each["tool_call_id"] in own]
    waiting = {each["tool_call_id"] for each in kept if each["role"] == "tool" and each["content"] == WAITING}
    for calls, problem in (
        (waiting - results.keys(), "no output for"),
        (results.keys() - waiting, "no call waits for"),
    ):
        if calls:
            message = f"input: {problem} {', '.join(sorted(calls))[:200]} of {name}"
            raise Problem(400, message, code="invalid_messages", param="input")
    history, prompt = split_conversation(rest, "input") if rest else ([], None)
    if not rest and not results:
        raise Problem(400, "input: expected a message, or results", code="invalid_messages", param="input")
    return Conversation(messages=read, history=[*with_results(kept, results), *history], prompt=prompt)


def _unknown(name: str, status: int) -> Problem:
    message = f"previous_response_id: {name!r:.80} is not kept here (any more); send the whole conversation as input"
    return Problem(status, message, code="previous_response_not_found", param="previous_response_id")


# ── the response ──


class _Response:
    """One response; what is streamed is made of the same items as a whole one."""

    def __init__(
        self,
        body: dict[str, Any],
        asked: _Body,
        conversation: Conversation,
        ask: Ask,
        agents: Agents,
    ) -> None:
        self._asked = asked
        self._conversation = conversation
        self._ask = ask
        self._agents = agents
        self._run: LiveRun[_Response] | None = None
        self._output: list[dict[str, Any]] = []
        self._open: tuple[str, list[str]] | None = None  # the kind of the item that is being streamed, and its text
        self._number = 0
        self._head: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": agents.name,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "truncation": "disabled",
            "store": asked.store is not False,
            "background": asked.background is True,
            **{name: body.get(name) for name in _REPEATED},
            **{name: body[name] for name in ("tool_choice", "tools", "metadata") if body.get(name) is not None},
        }

    @property
    def name(self) -> str:
        return str(self._head["id"])

    @property
    def is_background(self) -> bool:
        return self._asked.background is True

    def body(self) -> dict[str, Any]:
        """The response, as far as it is."""
        return {**self._head, "output": self._output}

    async def run(self, run: LiveRun[_Response]) -> None:
        """Have the agent answer."""
        self._run = run
        try:
            if self.is_background:  # now, because its id is what a client comes back with
                await self._send("in_progress", response=self.body())
            outcome = await watch(self._agents, self._ask, self._tell)
        except ClientLeft:
            raise
        except anyio.get_cancelled_exc_class():
            self._head["status"] = "cancelled"
            raise
        except Exception as error:  # a turn runs third-party code
            if not self.is_background and not (run.has_begun and self._asked.stream):
                self._agents.runs.forget(self.name)
                raise
            problem = problem_of(error)
            self._head |= {"status": "failed", "error": {"code": problem.code, "message": problem.message}}
            await self._end("failed")
            return
        self._keep(outcome)
        await self._close()
        if not self._asked.stream:  # its text is the turn's result, not the pieces joined
            self._output = [item for item in self._output if item["type"] == "reasoning"]
            if outcome.text or not (outcome.calls or outcome.refusal):
                self._output.append(_message_item([_text_part(outcome.text)]))
        for call in outcome.calls:
            await self._call(call)
        if outcome.refusal is not None:
            await self._whole_item(_message_item([{"type": "refusal", "refusal": outcome.refusal}]))
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(outcome.finish)
        self._head |= {"status": "completed" if reason is None else "incomplete", "usage": _usage(outcome)}
        self._head["incomplete_details"] = None if reason is None else {"reason": reason}
        await self._end(self._head["status"])

    def _keep(self, outcome: Outcome) -> None:
        """Keep the conversation, without the instructions, which are those of one request."""
        given = self._asked.instructions
        kept = self._ask.messages
        if given is not None:
            kept = [each for at, each in enumerate(kept) if at or each.get("content") != given]
        if self._asked.store is not False:
            self._agents.kept.keep(self._head["id"], kept)
        if outcome.calls and self._asked.previous_response_id is None:
            self._ask.messages = kept
            self._conversation.keep(outcome.calls, self._ask, self._agents)

    async def _tell(self, kind: str, text: str) -> None:
        if kind == "reset" and not self._asked.stream:
            self._output, self._open = [], None
            return
        if not text:
            return
        kind = "thinking" if kind == "thinking" else "text"
        if self._open is None or self._open[0] != kind:
            await self._close()
            await self._begin(kind)
        assert self._open is not None
        self._open[1].append(text)
        name = "reasoning_summary_text" if kind == "thinking" else "output_text"
        await self._send(
            f"{name}.delta", **self._place(kind), delta=text, **({} if kind == "thinking" else _NO_LOGPROBS)
        )

    # ── events ──

    async def _send(self, kind: str, **fields: Any) -> None:
        if self._number == 0 and kind != "created":
            await self._send("created", response={**self._head, "output": []})
            if kind != "in_progress":
                await self._send("in_progress", response={**self._head, "output": []})
        name = f"response.{kind}"
        sent = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        assert self._run is not None
        await self._run.write(event(sent, name=name))

    def _place(self, kind: str) -> dict[str, Any]:
        """Which part of which item is streamed."""
        part = {"summary_index": 0} if kind == "thinking" else {"content_index": 0}
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, **part}

    async def _begin(self, kind: str) -> None:
        item = _reasoning_item("") if kind == "thinking" else _message_item([_text_part("")])
        self._output.append(item)
        self._open = (kind, [])
        empty = {**item, "status": "in_progress", "summary" if kind == "thinking" else "content": []}
        await self._send("output_item.added", output_index=len(self._output) - 1, item=empty)
        name, part = _part_of(kind, "")
        await self._send(f"{name}.added", **self._place(kind), part=part)

    async def _close(self) -> None:
        """End the item that is open."""
        if self._open is None:
            return
        kind, text = self._open[0], "".join(self._open[1])
        name, part = _part_of(kind, text)
        item = self._output[-1]
        item["summary" if kind == "thinking" else "content"] = [part]
        more = {} if kind == "thinking" else _NO_LOGPROBS
        done = "reasoning_summary_text" if kind == "thinking" else "output_text"
        await self._send(f"{done}.done", **self._place(kind), text=text, **more)
        await self._send(f"{name}.done", **self._place(kind), part=part)
        await self._send("output_item.done", output_index=len(self._output) - 1, item=item)
        self._open = None

    async def _whole_item(self, item: dict[str, Any]) -> None:
        self._output.append(item)
        at = {"output_index": len(self._output) - 1}
        await self._send("output_item.added", **at, item=item)
        await self._send("output_item.done", **at, item=item)

    async def _call(self, call: ToolCall) -> None:
        item = _call_item(call)
        self._output.append(item)
        at = {"output_index": len(self._output) - 1}
        named = {**at, "item_id": item["id"]}
        await self._send("output_item.added", **at, item={**item, "status": "in_progress", "arguments": ""})
        await self._send("function_call_arguments.delta", **named, delta=item["arguments"])
        await self._send("function_call_arguments.done", **named, name=call.name, arguments=item["arguments"])
        await self._send("output_item.done", **at, item=item)

    async def _end(self, status: str) -> None:
        await self._close()
        await self._send(status, response=self.body())


_NO_LOGPROBS: dict[str, Any] = {"logprobs": []}
_REPEATED = (
    "instructions",
    "previous_response_id",
    "temperature",
    "top_p",
    "max_output_tokens",
    "reasoning",
    "text",
    "user",
)
"""Parameters that a response repeats as they came."""


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _part_of(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    if kind == "thinking":
        return "reasoning_summary_part", {"type": "summary_text", "text": text}
    return "content_part", _text_part(text)


def _message_item(content: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"id": f"msg_{secrets.token_hex(16)}", "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": content}


def _reasoning_item(text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"id": f"rs_{secrets.token_hex(16)}", "type": "reasoning", "status": "completed", "summary": summary}


def _call_item(call: ToolCall) -> dict[str, Any]:
    arguments = orjson.dumps(call.arguments, default=str).decode()
    head = {"id": f"fc_{secrets.token_hex(16)}", "type": "function_call", "status": "completed"}
    return {**head, "call_id": call.id, "name": call.name, "arguments": arguments}


def _usage(outcome: Outcome) -> dict[str, Any]:
    record = outcome.record
    given, made = record.input_tokens, record.output_tokens
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": record.cache_read_tokens or 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": record.reasoning_tokens or 0},
        "total_tokens": given + made,
    }
