"""The events of a turn as events of a run of AG-UI."""

from __future__ import annotations

import math
import secrets
from typing import Any

import anyio
import orjson

from amplifier.errors import ExecutionCancelled
from amplifier.events import PROVIDER_RESPONSE
from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent

from .._event_stream import EventStream, event
from .._problems import problem_of
from .._tool_output import output_text
from .._turn_text import TurnText
from ._turn import Ended, InterruptibleTurn, Question

__all__ = ["Run"]

_TOGETHER_SECONDS = 0.05
"""After the first question: calls that run at the same time ask at about the same time, and are answered together."""


class Run:
    """One run; a message is open while its text is being streamed."""

    def __init__(self, stream: EventStream, ids: dict[str, str]) -> None:
        self._stream = stream
        self._ids = ids
        self._text = TurnText()
        self._message: str | None = None
        self._reasoning: str | None = None

    async def show_until_asked(self, turn: InterruptibleTurn) -> bool:
        """Show a turn to its end, or until it waits for an answer; returns whether it does.

        Raises:
            Exception: The turn failed before anything was shown.
        """
        self._text = turn.text
        before = (self._text.input_tokens, self._text.output_tokens)
        asked_at = math.inf
        while True:
            asked_at = min(asked_at, anyio.current_time()) if _is_asking(turn) else math.inf
            with anyio.CancelScope(deadline=asked_at + _TOGETHER_SECONDS) as scope:
                item = await turn.next()
            if scope.cancelled_caught:
                if _is_asking(turn):  # unless their time is over just now
                    return True
                continue
            if item is None:
                await self.cancelled()
                return False
            if isinstance(item, Ended):
                await self._end(item, before)
                return False
            if not isinstance(item, Question):
                await self._show(item, turn)

    async def _end(self, ended: Ended, before: tuple[int, int]) -> None:
        if isinstance(ended.error, ExecutionCancelled) and self._stream.has_begun:
            await self.cancelled()
            return
        if ended.error is not None:
            if not self._stream.has_begun:
                raise ended.error
            await self._close()
            problem = problem_of(ended.error)
            await self._send("RUN_ERROR", message=problem.message, code=problem.code)
            return
        await self._say(self._text.rest(ended.result))
        given, made = self._text.input_tokens - before[0], self._text.output_tokens - before[1]
        usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
        await self._finish({"type": "success"}, usage=[usage])

    async def interrupted(self, interrupts: list[dict[str, Any]]) -> None:
        """End the run with questions to answer."""
        with anyio.CancelScope(shield=True):  # bounded by the stream; a client that has got them may leave at once
            await self._finish({"type": "interrupt", "interrupts": interrupts})

    async def cancelled(self) -> None:
        """End the run without a result: it was stopped."""
        await self._finish({"type": "cancelled"})

    async def _finish(self, outcome: dict[str, Any], **fields: Any) -> None:
        await self._close()
        await self._begin()
        await self._send("RUN_FINISHED", **self._ids, outcome=outcome, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._stream.write(event({"type": kind, **fields}))

    async def _begin(self) -> None:
        if not self._stream.has_begun:
            await self._send("RUN_STARTED", **self._ids)

    async def _show(self, turn_event: TurnEvent, turn: InterruptibleTurn) -> None:
        await self._begin()
        match turn_event:
            case ThinkingDelta():
                await self._think(turn_event.text)
            case ToolStarted():
                await self._call(turn_event, turn_event.tool_input)
                turn.started_calls.add(turn_event.tool_call_id)
            case ToolFinished():
                if (
                    turn_event.tool_call_id not in turn.started_calls
                ):  # rejected before it began, such as an unknown tool
                    await self._call(turn_event, turn_event.data.get("tool_input") or {})
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

    async def _call(self, called: ToolStarted | ToolFinished, given: Any) -> None:
        call_id = called.tool_call_id
        await self._close()
        await self._send("TOOL_CALL_START", toolCallId=call_id, toolCallName=called.tool_name)
        arguments = orjson.dumps(given, default=str).decode()
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


def _is_asking(turn: InterruptibleTurn) -> bool:
    """Whether it waits for answers about calls that have all been shown, which may take a moment after the question."""
    questions = turn.open_questions()
    return bool(questions) and all(each.call_id is None or each.call_id in turn.started_calls for each in questions)
