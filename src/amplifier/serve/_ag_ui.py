"""The Agent-User Interaction protocol (AG-UI 1.0): a run is a POST, its events are server-sent events."""

from __future__ import annotations

import secrets
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from amplifier.events import PROVIDER_RESPONSE
from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent

from ._agents import Agents
from ._event_stream import ClientLeft, EventStream, LongResponse, event
from ._history import split_conversation
from ._limits import read_json
from ._problems import Problem, problem_of
from ._tool_output import output_text
from ._turn_text import TurnText

__all__ = ["ag_ui_routes"]


def ag_ui_routes(agents: Agents) -> list[Route]:
    """``/ag-ui``."""

    async def run(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        thread_id, run_id = (_id(body, name) for name in ("threadId", "runId"))
        if body.get("tools"):
            raise Problem(
                400,
                "tools: this server runs an agent with tools of its own and calls none of the client's; leave tools out",
                code="client_tools_not_supported",
            )
        if body.get("resume"):
            raise Problem(
                400, "resume: this agent interrupts no runs, so there is none to resume", code="invalid_request"
            )
        history, prompt = split_conversation(body.get("messages"))

        async def work(stream: EventStream) -> None:
            await _Run(stream, {"threadId": thread_id, "runId": run_id}).run(agents, history, prompt)

        return LongResponse(work, agents.limits.send_seconds)

    return [Route("/ag-ui", run, methods=["POST"])]


def _id(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Problem(400, f"{name}: expected a text, got {value!r:.80}", code="invalid_request")
    return value


class _Run:
    """One run; a message is open while its text is being streamed."""

    def __init__(self, stream: EventStream, ids: dict[str, str]) -> None:
        self._stream = stream
        self._ids = ids
        self._text = TurnText()
        self._message: str | None = None
        self._reasoning: str | None = None

    async def run(self, agents: Agents, history: list[dict[str, Any]], prompt: str) -> None:
        try:
            result = await agents.run_once(history, prompt, self._show)
            await self._say(self._text.rest(result))
            await self._close()
            await self._begin()
            usage = {
                "inputTokens": self._text.input_tokens,
                "outputTokens": self._text.output_tokens,
                "totalTokens": self._text.input_tokens + self._text.output_tokens,
            }
            await self._send("RUN_FINISHED", **self._ids, outcome={"type": "success"}, usage=[usage])
        except ClientLeft:
            raise
        except Exception as error:  # a turn runs third-party code
            if not self._stream.has_begun:
                raise
            await self._close()
            problem = problem_of(error)
            await self._send("RUN_ERROR", message=problem.message, code=problem.code)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._stream.write(event({"type": kind, **fields}))

    async def _begin(self) -> None:
        if not self._stream.has_begun:
            await self._send("RUN_STARTED", **self._ids)

    async def _show(self, turn_event: TurnEvent) -> None:
        await self._begin()
        match turn_event:
            case ThinkingDelta():
                await self._think(turn_event.text)
            case ToolStarted():
                await self._close()
                await self._call(turn_event)
            case ToolFinished():
                await self._send(
                    "TOOL_CALL_RESULT",
                    messageId=_new_id(),
                    toolCallId=turn_event.tool_call_id,
                    content=output_text(turn_event.data),
                    role="tool",
                )
            case _:
                text = self._text.add(turn_event)
                await self._say(text.lstrip("\n") if self._message is None else text)
                if turn_event.name == PROVIDER_RESPONSE:
                    await self._close()

    async def _say(self, text: str) -> None:
        if not text:
            return
        if self._message is None:
            await self._close()
            self._message = _new_id()
            await self._send("TEXT_MESSAGE_START", messageId=self._message, role="assistant")
        await self._send("TEXT_MESSAGE_CONTENT", messageId=self._message, delta=text)

    async def _think(self, text: str) -> None:
        if not text:
            return
        if self._reasoning is None:
            await self._close()
            self._reasoning = _new_id()
            await self._send("REASONING_START", messageId=self._reasoning)
            await self._send("REASONING_MESSAGE_START", messageId=self._reasoning, role="reasoning")
        await self._send("REASONING_MESSAGE_CONTENT", messageId=self._reasoning, delta=text)

    async def _call(self, started: ToolStarted) -> None:
        call_id = started.tool_call_id
        await self._send("TOOL_CALL_START", toolCallId=call_id, toolCallName=started.tool_name)
        arguments = orjson.dumps(started.tool_input, default=str).decode()
        await self._send("TOOL_CALL_ARGS", toolCallId=call_id, delta=arguments)
        await self._send("TOOL_CALL_END", toolCallId=call_id)

    async def _close(self) -> None:
        """End the message that is open."""
        message, self._message = self._message, None
        reasoning, self._reasoning = self._reasoning, None
        if message is not None:
            await self._send("TEXT_MESSAGE_END", messageId=message)
        if reasoning is not None:
            await self._send("REASONING_MESSAGE_END", messageId=reasoning)
            await self._send("REASONING_END", messageId=reasoning)


def _new_id() -> str:
    return secrets.token_hex(12)
