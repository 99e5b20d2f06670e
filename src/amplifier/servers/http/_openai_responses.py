"""The Responses API of OpenAI. A request brings its conversation or continues a response."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._internal.json import JSON
from amplifier._internal.reading import (
    Kind,
    any_text,
    anything,
    choice,
    flag,
    object_with,
    option,
    optional,
)
from amplifier.models import ToolCall
from amplifier.models.prompts import Prompt
from amplifier.shared_sessions import ClientLeft, LiveRun, with_results
from amplifier.shared_sessions.client_tools import WAITING

from ._agents import Agents, Ask
from ._event_stream import LAST_SECONDS, EventStream, LongResponse, event, follow_run
from ._history import read_messages, split_conversation
from ._openai import (
    Outcome,
    Parameters,
    arguments_of,
    effort_kind,
    format_kind,
    keep_for_results,
    known_history,
    limit_kind,
    read_parameters,
    unsupported,
    usage,
    watch,
)
from .requests import Problem, problem_of, read_body, read_json


def responses_routes(agents: Agents) -> list[Route]:
    """Return the routes of ``/v1/responses``."""

    async def create(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        parameters = read_parameters(_Body, body, agents.name)
        if parameters.background and parameters.store is False:
            message = (
                "background: expected null or false without store, because the response has to be "
                "kept"
            )
            raise Problem(400, message, code="invalid_request", param="background")
        # A background request is answered before its turn starts.
        if parameters.background:
            agents.require_room()
        sent, history, prompt = _conversation(parameters, agents)
        ask = Ask(
            history=history,
            prompt=prompt,
            schema=(parameters.text or {}).get("format"),
            **parameters.turn_options(),
        )
        response = _Response(body, parameters, sent, ask, agents)

        async def work(stream: EventStream) -> Response | None:
            name = response.name if parameters.store is not False else None
            run = agents.runs.start(
                response.run, response, stays=None if parameters.background else 0, name=name
            )
            if parameters.background and not parameters.stream:
                return JSONResponse(response.body())
            await follow_run(run, 0, stream if parameters.stream else None)
            return None if parameters.stream else JSONResponse(response.body())

        return LongResponse(work, agents.limits.send_seconds)

    def find(request: Request) -> LiveRun[_Response]:
        run = agents.runs.find(request.path_params["name"])
        if run is None:
            raise _missing(request.path_params["name"])
        return run

    async def retrieve(request: Request) -> Response:
        run, query = find(request), read_body(_Query, dict(request.query_params))
        if query.stream != "true":
            return JSONResponse(run.about.body())

        async def work(stream: EventStream) -> None:
            await follow_run(run, int(query.starting_after or -1) + 1, stream)

        return LongResponse(work, agents.limits.send_seconds)

    async def cancel(request: Request) -> Response:
        run = find(request)
        if not run.about.is_background:
            message = (
                "only a response that was asked for with background can be cancelled; another one "
                "ends with its connection"
            )
            raise Problem(400, message, code="invalid_request")
        await run.cancel()
        return JSONResponse(run.about.body())

    async def delete(request: Request) -> Response:
        name = request.path_params["name"]
        if (run := agents.runs.find(name)) is not None:
            await run.cancel()
        if not any([agents.runs.forget(name), agents.kept.forget(name)]):
            raise _missing(name)
        return JSONResponse({"id": name, "object": "response.deleted", "deleted": True})

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/{name}", retrieve, methods=["GET"]),
        Route("/v1/responses/{name}", delete, methods=["DELETE"]),
        Route("/v1/responses/{name}/cancel", cancel, methods=["POST"]),
    ]


@attrs.frozen(kw_only=True)
class _Query:
    """The query of a request that retrieves a response."""

    stream: str | None = option(optional(choice("true", "false")), None)
    starting_after: str | None = option(
        optional(
            Kind(
                "the sequence_number of an event",
                lambda value: value.isdecimal() and len(value) < 10,
            )
        ),
        None,
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
                {"effort": effort_kind, "summary": optional(choice("auto", "concise", "detailed"))}
            )
        ),
        None,
    )
    text: Any = option(
        optional(object_with({"format": format_kind, "verbosity": unsupported("medium")})), None
    )
    stream_options: Any = option(
        optional(object_with({"include_obfuscation": unsupported(False)})), None
    )
    truncation: Any = option(unsupported("disabled"), None)
    include: Any = option(unsupported([]), None)
    background: bool | None = option(optional(flag), None)
    conversation: Any = option(unsupported(), None)
    max_tool_calls: Any = option(unsupported(), None)
    prompt: Any = option(unsupported(), None)
    context_management: Any = option(unsupported([]), None)

    def settings(self) -> dict[str, JSON]:
        more = {
            "max_output_tokens": self.max_output_tokens,
            "reasoning_effort": (self.reasoning or {}).get("effort"),
        }
        return {**super().settings(), **more}


# ── the conversation ──


def _conversation(
    parameters: _Body, agents: Agents
) -> tuple[list[dict[str, JSON]], list[dict[str, JSON]], Prompt | None]:
    """Return the messages of the request, all messages before its turn, and its prompt."""
    items = (
        [{"role": "user", "content": parameters.input}]
        if isinstance(parameters.input, str)
        else parameters.input
    )
    messages = (
        [_message(item, index) for index, item in enumerate(items)]
        if isinstance(items, list)
        else items
    )
    sent, name = read_messages(messages, "input"), parameters.previous_response_id
    history, prompt = (
        known_history(sent, "input", agents) if name is None else _continued(sent, name, agents)
    )
    instructions = (
        []
        if parameters.instructions is None
        else [{"role": "system", "content": parameters.instructions}]
    )
    return sent, [*instructions, *history], prompt


def _message(item: Any, index: int) -> Any:
    """Return an item as a message in the form of chat completions."""
    if not isinstance(item, Mapping):
        return item
    match item.get("type", "message"):
        case "message":
            return {name: value for name, value in item.items() if name in ("role", "content")}
        case "reasoning":
            return {"role": "reasoning"}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            return {
                "role": "assistant",
                "tool_calls": [{"id": item.get("call_id"), "function": function}],
            }
        case "function_call_output":
            return {
                "role": "tool",
                "tool_call_id": item.get("call_id"),
                "content": item.get("output"),
            }
    expected = "expected message, reasoning, function_call or function_call_output"
    where = f"input[{index}].type"
    raise Problem(
        400,
        f"{where}: {expected}, got {item.get('type')!r:.80}",
        code="invalid_messages",
        param=where,
    )


def _continued(
    sent: list[dict[str, JSON]], name: str, agents: Agents
) -> tuple[list[dict[str, JSON]], Prompt | None]:
    """Return the conversation of a kept response, continued with results or more messages."""
    kept, run = agents.kept.find(name), agents.runs.find(name)
    if kept is None and run is not None and not run.over.is_set():
        message = f"previous_response_id: {name} is not over yet"
        raise Problem(409, message, code="response_in_progress", param="previous_response_id")
    if kept is None:
        message = (
            f"previous_response_id: {name!r:.80} is not, or no longer, kept here; send the whole "
            "conversation as input"
        )
        raise Problem(
            400, message, code="previous_response_not_found", param="previous_response_id"
        )
    waiting = {
        message["tool_call_id"]
        for message in kept
        if message["role"] == "tool" and message["content"] == WAITING
    }
    results = {
        message["tool_call_id"]: message["content"]
        for message in sent
        if message.get("tool_call_id") in waiting
    }
    if missing := waiting - results.keys():
        problem = f"input: no output for {', '.join(sorted(missing))[:200]} of {name}"
        raise Problem(400, problem, code="invalid_messages", param="input")
    rest = [message for message in sent if message.get("tool_call_id") not in waiting]
    history, prompt = split_conversation(rest, "input") if rest else ([], None)
    return [*with_results(kept, results), *history], prompt


def _missing(name: str) -> Problem:
    return Problem(
        404,
        f"response {name!r:.80} is not, or no longer, kept here",
        code="response_not_found",
        param="response_id",
    )


# ── the response ──


class _Response:
    """One response. It consists of the same items, whether it is streamed or whole."""

    def __init__(
        self,
        body: dict[str, JSON],
        parameters: _Body,
        sent: list[dict[str, JSON]],
        ask: Ask,
        agents: Agents,
    ) -> None:
        self._parameters = parameters
        self._sent = sent
        self._ask = ask
        self._agents = agents
        self._run: LiveRun[_Response] | None = None
        self._output: list[dict[str, JSON]] = []
        self._open: _Open | None = None
        self._number = 0
        self.name = f"resp_{secrets.token_hex(16)}"
        self.is_background = parameters.background is True
        self._head: dict[str, JSON] = {
            "id": self.name,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": agents.name,
            "parallel_tool_calls": parameters.parallel_tool_calls is not False,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "truncation": "disabled",
            "store": parameters.store is not False,
            "background": self.is_background,
            **{name: body.get(name) for name in _REPEATED},
            **{
                name: body[name]
                for name in ("tool_choice", "tools", "metadata")
                if body.get(name) is not None
            },
        }

    def body(self) -> dict[str, JSON]:
        """Return the response so far."""
        return {**self._head, "output": self._output}

    async def run(self, run: LiveRun[_Response]) -> None:
        """Run the agent's turn."""
        self._run = run
        try:
            # The client needs the id at once, so that it can return to the response.
            if self.is_background:
                await self._send("in_progress", response=self.body())
            outcome = await watch(self._agents, self._ask, self._report, run.flush)
        except ClientLeft:
            raise
        except anyio.get_cancelled_exc_class():
            self._head["status"] = "cancelled"
            with anyio.move_on_after(LAST_SECONDS, shield=True), suppress(ClientLeft):
                # The API has no event for a cancelled response.
                await self._end("failed")
            raise
        except Exception as error:  # third-party code
            if not self.is_background and not (run.has_begun and self._parameters.stream):
                self._agents.runs.forget(self.name)
                raise
            problem = problem_of(error)
            # Failed responses have different codes from failed requests. Two of the codes are
            # suitable here.
            code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
            self._head |= {"status": "failed", "error": {"code": code, "message": problem.message}}
            await self._end("failed")
            return
        self._keep(outcome)
        await self._close()
        # The text of a whole response is the turn's result, which may differ from the joined
        # pieces.
        if not self._parameters.stream:
            self._output = [item for item in self._output if item["type"] == "reasoning"]
            if outcome.text or not (outcome.calls or outcome.refusal):
                self._output.append(_message_item([_TEXT.content(outcome.text)]))
        for call in outcome.calls:
            await self._call(call)
        if outcome.refusal is not None:
            item = _message_item([{"type": "refusal", "refusal": outcome.refusal}])
            await self._send("output_item.done", **await self._add(item), item=item)
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(
            outcome.finish
        )
        self._head |= {
            "status": "completed" if reason is None else "incomplete",
            "usage": usage(outcome.record),
        }
        self._head["incomplete_details"] = None if reason is None else {"reason": reason}
        await self._end(self._head["status"])

    def _keep(self, outcome: Outcome) -> None:
        """Keep the conversation, without the instructions of this request."""
        instructions = self._parameters.instructions
        kept = self._ask.messages
        if instructions is not None:
            kept = [
                message
                for at, message in enumerate(kept)
                if at or message.get("content") != instructions
            ]
        if self._parameters.store is not False:
            self._agents.kept.keep(self.name, kept)
        if outcome.calls and self._parameters.previous_response_id is None:
            keep_for_results(self._agents, self._sent, outcome.calls, kept)

    async def _report(self, kind: str, text: str) -> None:
        if kind == "reset" and not self._parameters.stream:
            self._output, self._open = [], None
            return
        if not text:
            return
        part = _THINKING if kind == "thinking" else _TEXT
        if self._open is None or self._open.part is not part:
            await self._close()
            await self._begin(part)
        assert self._open is not None
        self._open.text += text
        await self._send(f"{part.text_event}.delta", **self._open.place, delta=text, **part.more)

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
        self._run.add(event(sent, name=name))
        if self._run.is_full:
            await self._run.flush()

    async def _add(self, item: dict[str, JSON], **begun: Any) -> dict[str, JSON]:
        """Add an item that begins with these members. Return its index."""
        self._output.append(item)
        at = {"output_index": len(self._output) - 1}
        await self._send("output_item.added", **at, item={**item, **begun})
        return at

    async def _begin(self, part: _Part) -> None:
        item = part.item([part.content("")])
        at = await self._add(item, status="in_progress", **{part.member: []})
        self._open = _Open(part, item, {"item_id": item["id"], **at, part.index: 0})
        await self._send(f"{part.event}.added", **self._open.place, part=part.content(""))

    async def _close(self) -> None:
        """End the open item."""
        if (shown := self._open) is None:
            return
        self._open, part = None, shown.part
        content = part.content(shown.text)
        shown.item[part.member] = [content]
        await self._send(f"{part.text_event}.done", **shown.place, text=shown.text, **part.more)
        await self._send(f"{part.event}.done", **shown.place, part=content)
        await self._send(
            "output_item.done", output_index=shown.place["output_index"], item=shown.item
        )

    async def _call(self, call: ToolCall) -> None:
        item = _item(
            "fc", "function_call", call_id=call.id, name=call.name, arguments=arguments_of(call)
        )
        at = await self._add(item, status="in_progress", arguments="")
        named = {**at, "item_id": item["id"]}
        await self._send("function_call_arguments.delta", **named, delta=item["arguments"])
        await self._send("function_call_arguments.done", **named, arguments=item["arguments"])
        await self._send("output_item.done", **at, item=item)

    async def _end(self, status: str) -> None:
        await self._close()
        await self._send(status, response=self.body())
        assert self._run is not None
        await self._run.wait_taken()


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
"""The parameters that a response repeats unchanged."""


def _item(prefix: str, kind: str, **members: Any) -> dict[str, JSON]:
    return {
        "id": f"{prefix}_{secrets.token_hex(16)}",
        "type": kind,
        "status": "completed",
        **members,
    }


def _message_item(content: list[dict[str, JSON]]) -> dict[str, JSON]:
    return _item("msg", "message", role="assistant", content=content)


@attrs.frozen(kw_only=True)
class _Part:
    """The only part of an item, which is streamed piece by piece.

    Attributes:
        event: The name of the events about the part.
        text_event: The name of the events about its text.
        more: More members of the events about its text.
        index: The name of the part's index.
        member: The member of the item that holds the part.
        item: Makes the item.
        content: Makes the part from its text.
    """

    event: str
    text_event: str
    more: dict[str, JSON] = attrs.field(factory=dict)
    index: str
    member: str
    item: Callable[[list[dict[str, JSON]]], dict[str, JSON]]
    content: Callable[[str], dict[str, JSON]]


_TEXT = _Part(
    event="content_part",
    text_event="output_text",
    more={"logprobs": []},
    index="content_index",
    member="content",
    item=_message_item,
    content=lambda text: {"type": "output_text", "text": text, "annotations": [], "logprobs": []},
)
_THINKING = _Part(
    event="reasoning_summary_part",
    text_event="reasoning_summary_text",
    index="summary_index",
    member="summary",
    item=lambda summary: _item("rs", "reasoning", summary=summary),
    content=lambda text: {"type": "summary_text", "text": text},
)


@attrs.define
class _Open:
    """The item that is being streamed, and where its part is."""

    part: _Part
    item: dict[str, JSON]
    place: dict[str, JSON]
    text: str = ""
