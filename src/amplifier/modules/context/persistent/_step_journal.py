"""The step journal: what is known about the tool calls of the latest answer, so that a turn can be resumed after a crash.

A transcript holds results in the order of the calls, so the result of a fast call may have to wait for that of a slow one. Here each
result is on disk as soon as it is there. Records, each with the position of the answer in the conversation:

    answered    the model answered with tool calls; from here on a call without a further record was never started
    started     on disk before the tool is called
    finished    the result, on disk before the loop gets it
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from amplifier.contracts import Step
from amplifier.errors import AmplifierError, ModelError
from amplifier.models import ChatResponse, ToolCallBlock, ToolResult, from_dict, to_dict
from amplifier.store import Conversation, encode_message

logger = logging.getLogger("amplifier.modules.context-persistent")


class JournalError(AmplifierError):
    """The step journal could not be written, so the turn ended; the error of the system is the cause.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self._message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self._message), self.__dict__)


class StepJournal:
    """The journal of one conversation, and the step wrapper that writes it.

    Args:
        stored: The conversation.
        in_thread: Runs a blocking call to its end, one at a time, whatever happens to the caller.
        next_position: Where the next message goes.
        answer_position: Where the latest answer is.

    Attributes:
        pending: A record that is stored together with the next message or record, which saves a sync.
    """

    def __init__(
        self,
        stored: Conversation,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
        next_position: Callable[[], int],
        answer_position: Callable[[], int],
    ) -> None:
        self._stored = stored
        self._in_thread = in_thread
        self._next_position = next_position
        self._answer_position = answer_position
        self._known: dict[str, dict[str, Any]] = {}
        self._is_complete = False
        self._seen: set[str] = set()
        self._has_warned = False
        self.pending: list[dict[str, Any]] = []

    def open(self, open_calls: Collection[str], position: int) -> None:
        """Read what is known about the calls of the latest answer that have no result in the conversation; blocks.

        Raises:
            StoreDamagedError: The journal is not as it was written.
            OSError: The system refuses.
        """
        for record in self._stored.read_steps():
            if not open_calls or record["position"] != position:
                continue
            if record["step"] == "answered":
                self._is_complete = True
            elif record["call"] in open_calls:
                self._known[record["call"]] = record

    def turn_number(self) -> int | None:
        """The number of the turn that was cut off, if the journal knows a call of it."""
        numbers = [record["turn"] for record in self._known.values() if isinstance(record.get("turn"), int)]
        return max(numbers, default=None)

    # ── the step wrapper ──

    async def __call__(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Record what becomes of a step, or return the result that is recorded.

        Raises:
            JournalError: A record could not be written. If it was that of a start, the tool was not called.
        """
        if step.kind == "model":
            return await (self._note_answer(step, run) if step.call.iteration else run())
        call_id = step.call.call_id
        self._seen.add(call_id)
        if step.is_resumed:
            record = self._known.get(call_id)
            if record is not None and record["step"] == "finished":
                return from_dict(ToolResult, record.get("result"))
            if self._is_complete:
                step.was_started = record is not None
        position = self._answer_position()

        async def started() -> None:
            await self._write(_record("started", step, position), f"Tool {step.call.tool_name!r} was not called")

        step.before_start(started)
        result = await run()
        if isinstance(result, ToolResult):
            lost = f"The result of a call of tool {step.call.tool_name!r} is not kept"
            await self._write({**_record("finished", step, position), "result": _as_dict(result)}, lost)
        return result

    async def _note_answer(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        self._seen.clear()
        response = await run()
        if isinstance(response, ChatResponse) and _has_calls(response):
            self.pending = [{**_record("answered", step, self._next_position()), "call": ""}]
        return response

    async def _write(self, record: dict[str, Any], lost: str) -> None:
        pending = self.pending
        try:
            await self._in_thread(lambda: self._stored.write_steps([*pending, record]))
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalError(self._stored.path, f"{reason}. {lost}, so the turn ends; resume it then") from error
        self.pending = []

    # ── loops that make no steps ──

    def watch(self, event: str, data: dict[str, Any]) -> None:
        """A hook handler: log once that a loop calls tools without making steps of the calls."""
        call_id = data.get("tool_call_id")
        if not self._has_warned and isinstance(call_id, str) and call_id not in self._seen:
            self._has_warned = True
            logger.warning(
                "the orchestrator of this session does not run its tool calls as steps (coordinator.run_step), so its turns are "
                "not durable: a call that a crash cuts off is reported as interrupted"
            )


def _record(what: str, step: Step, position: int) -> dict[str, Any]:
    return {
        "step": what,
        "position": position,
        "key": step.key,
        "call": step.call.call_id,
        "turn": step.call.turn_number,
    }


def _has_calls(response: ChatResponse) -> bool:
    return bool(response.tool_calls) or any(isinstance(block, ToolCallBlock) for block in response.content)


def _as_dict(result: ToolResult) -> dict[str, Any]:
    """A result as JSON; one that has no JSON form as the text that the model gets."""
    try:
        shown = to_dict(result)
        encode_message(shown)
    except (ModelError, TypeError, ValueError):
        return {"success": result.success, "output": result.get_serialized_output()}
    return shown
