"""The chat completions of the OpenAI API: the whole conversation comes with every request, the agent's tools run inside."""

from __future__ import annotations

import secrets
import time
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._reading import Kind, flag, mapping, option, optional
from amplifier.models import AnswerReset, ThinkingDelta, TurnEvent
from amplifier.turns import TurnRecord

from ._agents import Agents
from ._event_stream import ClientLeft, EventStream, LongResponse, event
from ._history import split_conversation
from ._limits import read_json
from ._problems import Problem, problem_of, read_body

__all__ = ["openai_routes"]


def openai_routes(agents: Agents) -> list[Route]:
    """``/v1/models`` and ``/v1/chat/completions``."""
    created = int(time.time())

    async def models(request: Request) -> Response:
        entry = {"id": agents.name, "object": "model", "created": created, "owned_by": "amplifier"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(request: Request) -> Response:
        asked = _read(await read_json(request, agents.limits), agents.name)

        async def work(stream: EventStream) -> Response | None:
            completion = _Completion(asked, agents.name, stream)
            return await completion.run(agents)

        return LongResponse(work, agents.limits.send_seconds)

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
    ]


@attrs.frozen(kw_only=True)
class _Body:
    """What of a request is read; the rest has no effect."""

    model: Any = None
    messages: Any = None
    tools: Any = None
    functions: Any = None
    n: int | None = option(optional(Kind("1", lambda value: value == 1)), None)
    stream: bool | None = option(optional(flag), None)
    stream_options: dict[str, Any] | None = option(optional(mapping), None)


@attrs.frozen(kw_only=True)
class _Asked:
    history: list[dict[str, Any]]
    prompt: str
    is_streamed: bool
    with_usage: bool


def _read(body: dict[str, Any], name: str) -> _Asked:
    given = read_body(_Body, body)
    if given.model not in (None, name):
        raise Problem(404, f"model: {given.model!r:.80} is not served here; expected {name!r}", code="model_not_found")
    for key in ("tools", "functions"):
        if getattr(given, key):
            raise Problem(
                400,
                f"{key}: this server runs an agent with tools of its own and calls none of the client's; leave {key} out",
                code="client_tools_not_supported",
            )
    history, prompt = split_conversation(given.messages)
    return _Asked(
        history=history,
        prompt=prompt,
        is_streamed=given.stream is True,
        with_usage=(given.stream_options or {}).get("include_usage") is True,
    )


class _Completion:
    """One completion; both forms are made of the same pieces."""

    def __init__(self, asked: _Asked, model: str, stream: EventStream) -> None:
        self._asked = asked
        self._stream = stream
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._record = TurnRecord()
        self._answer: str = ""
        self._thoughts: list[str] = []
        self._role: dict[str, str] = {"role": "assistant"}

    async def run(self, agents: Agents) -> Response | None:
        try:
            ended = await agents.run_once(self._asked.history, self._asked.prompt, self._record, self._show)
            if ended.error is not None:
                raise ended.error
            self._answer = ended.result or ""
            await self._piece(content=self._record.rest(ended.result))
        except ClientLeft:
            raise
        except Exception as error:  # a turn runs third-party code
            if not self._stream.has_begun:
                raise
            await self._stream.write(event(problem_of(error).body()))  # the status line has been sent
            return None
        if not self._asked.is_streamed:
            return JSONResponse(self._whole())
        await self._chunk([{"index": 0, "delta": self._take_role(), "finish_reason": "stop"}])
        if self._asked.with_usage:
            await self._chunk([], usage=self._usage())
        await self._stream.write(event("[DONE]"))
        return None

    async def _show(self, turn_event: TurnEvent, text: str) -> None:
        if isinstance(turn_event, ThinkingDelta):
            await self._piece(reasoning_content=turn_event.text)
        elif isinstance(turn_event, AnswerReset) and not self._asked.is_streamed:
            self._thoughts.clear()
        else:
            await self._piece(content=text)

    async def _piece(self, *, content: str = "", reasoning_content: str = "") -> None:
        if self._asked.is_streamed:
            # The name for reasoning is not OpenAI's; the chat UIs that show it use this one.
            new = (
                {"content": content}
                if content
                else {"reasoning_content": reasoning_content}
                if reasoning_content
                else {}
            )
            if new:
                await self._chunk([{"index": 0, "delta": {**self._take_role(), **new}, "finish_reason": None}])
        else:
            self._thoughts.append(reasoning_content)

    def _take_role(self) -> dict[str, str]:
        role, self._role = self._role, {}
        return role

    async def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> None:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        await self._stream.write(event(chunk))

    def _whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._answer, "refusal": None}
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        given, made = self._record.input_tokens, self._record.output_tokens
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
