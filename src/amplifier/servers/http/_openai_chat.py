"""The chat completions of the OpenAI API: the whole conversation comes with every request, the agent's tools run inside."""

from __future__ import annotations

import secrets
import time
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._reading import Kind, anything, flag, object_with, option, optional
from amplifier.live import ClientLeft
from amplifier.models import ToolCall

from ._agents import Agents, Ask
from ._event_stream import EventStream, LongResponse, event
from ._history import read_messages
from ._limits import read_json
from ._openai_request import (
    Outcome,
    Parameters,
    arguments_of,
    effort_kind,
    format_kind,
    keep_for_results,
    known_history,
    limit_kind,
    read_parameters,
    stop_kind,
    unsupported,
    usage,
    watch,
)
from ._problems import problem_of


def openai_routes(agents: Agents) -> list[Route]:
    """``/v1/models`` and ``/v1/chat/completions``."""
    entry = {"id": agents.name, "object": "model", "created": int(time.time()), "owned_by": "amplifier"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [entry]})

    async def model(request: Request) -> Response:
        read_parameters(Parameters, {"model": request.path_params["name"]}, agents.name)
        return JSONResponse(entry)

    async def completions(request: Request) -> Response:
        asked = read_parameters(_Body, await read_json(request, agents.limits), agents.name)
        sent = read_messages(asked.messages)
        history, prompt = known_history(sent, "messages", agents)
        ask = Ask(history=history, prompt=prompt, schema=asked.response_format, **asked.of_turn())

        async def work(stream: EventStream) -> Response | None:
            return await _Completion(asked, sent, ask, agents, stream).run()

        return LongResponse(work, agents.limits.send_seconds)

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
    ]


@attrs.frozen(kw_only=True)
class _Body(Parameters):
    messages: Any = option(anything, None)
    n: int | None = option(optional(Kind("1", lambda value: value == 1)), None)
    stream_options: Any = option(
        optional(object_with({"include_usage": optional(flag), "include_obfuscation": unsupported(False)})), None
    )
    max_tokens: int | None = option(limit_kind, None)
    max_completion_tokens: int | None = option(limit_kind, None)
    stop: list[str] | None = option(stop_kind, None)
    reasoning_effort: str | None = option(effort_kind, None)
    response_format: dict[str, Any] | None = option(format_kind, None)
    store: Any = option(unsupported(False), None)
    seed: Any = option(unsupported(), None)
    frequency_penalty: Any = option(unsupported(0), None)
    presence_penalty: Any = option(unsupported(0), None)
    logit_bias: Any = option(unsupported({}), None)
    logprobs: Any = option(unsupported(False), None)
    modalities: Any = option(unsupported(["text"]), None)
    verbosity: Any = option(unsupported("medium"), None)
    audio: Any = option(unsupported(), None)
    prediction: Any = option(unsupported(), None)
    web_search_options: Any = option(unsupported(), None)
    functions: Any = option(Kind("tools in its place", lambda value: not value), None)
    function_call: Any = option(Kind("tool_choice in its place", lambda value: value in (None, "auto", "none")), None)

    def settings(self) -> dict[str, Any]:
        limit = self.max_completion_tokens or self.max_tokens
        more = {"max_output_tokens": limit, "stop": self.stop, "reasoning_effort": self.reasoning_effort}
        return {**super().settings(), **more}


class _Completion:
    """One completion; both forms are made of the same pieces."""

    def __init__(self, asked: _Body, sent: list[dict[str, Any]], ask: Ask, agents: Agents, stream: EventStream) -> None:
        self._is_streamed = asked.stream is True
        self._with_usage = bool(asked.stream_options and asked.stream_options.get("include_usage"))
        self._sent = sent
        self._ask = ask
        self._agents = agents
        self._stream = stream
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": agents.name}
        self._thoughts: list[str] = []
        self._role: dict[str, str] = {"role": "assistant"}

    async def run(self) -> Response | None:
        try:
            outcome = await watch(self._agents, self._ask, self._report)
        except ClientLeft:
            raise
        except Exception as error:  # a turn runs third-party code
            if not self._stream.has_begun:
                raise
            await self._stream.write(event(problem_of(error).body()))  # the status line has been sent
            return None
        if outcome.calls:
            keep_for_results(self._agents, self._sent, outcome.calls, self._ask.messages)
        if not self._is_streamed:
            return JSONResponse(self._whole(outcome))
        calls = [{"index": index, **_call(call)} for index, call in enumerate(outcome.calls)]
        if calls or outcome.refusal is not None:
            more = {"refusal": outcome.refusal} if outcome.refusal is not None else {"tool_calls": calls}
            await self._delta(more)
        await self._delta({}, finish_reason=outcome.finish)
        if self._with_usage:
            await self._chunk([], usage=usage(outcome.record, "prompt", "completion"))
        await self._stream.write(event("[DONE]"))
        return None

    async def _report(self, kind: str, text: str) -> None:
        if not self._is_streamed:
            if kind == "reset":
                self._thoughts.clear()
            elif kind == "thinking":
                self._thoughts.append(text)
        elif text:
            # The name for reasoning is not OpenAI's; the chat UIs that show it use this one.
            await self._delta({"reasoning_content" if kind == "thinking" else "content": text})

    async def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        role, self._role = self._role, {}
        await self._chunk([{"index": 0, "delta": {**role, **delta}, "finish_reason": finish_reason}])

    async def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> None:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        await self._stream.write(event(chunk))

    def _whole(self, outcome: Outcome) -> dict[str, Any]:
        content = outcome.text or (None if outcome.calls or outcome.refusal is not None else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": outcome.refusal}
        if outcome.calls:
            message["tool_calls"] = [_call(call) for call in outcome.calls]
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish}
        used = usage(outcome.record, "prompt", "completion")
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": used}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_of(call)}}
