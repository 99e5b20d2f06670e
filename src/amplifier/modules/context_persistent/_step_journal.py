"""The step journal: what is known about the tool calls of the latest answer, so that a turn can be resumed after a crash.

A transcript holds results in the order of the calls, so the result of a fast call may have to wait for that of a slow one. Here each
result is on disk as soon as it is there. Records, each with the place of the answer in the conversation:

    answered    the model answered with tool calls; from here on a call without a further record was never started
    started     on disk before the tool is called
    finished    the result, on disk before the loop gets it

``writer`` is a fencing token. A process that opens the journal takes a higher one than any in the file; records with a lower
token behind the first record of a newer writer are of a process that had lost the conversation, and do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import attrs

from amplifier.contracts import Step
from amplifier.errors import ModelError
from amplifier.models import ChatResponse, ToolCallBlock, ToolResult, from_dict, to_dict

from ._errors import JournalError
from ._log_records import STEPS, encode_message
from ._message_log import MessageLog

logger = logging.getLogger("amplifier.modules.context-persistent")

_LARGEST = 1 << 20
"""Bytes after which records of earlier answers are dropped."""


@attrs.frozen
class Place:
    """Where in a conversation an answer is: the conversation may be replaced, and providers may use an id twice."""

    generation: int
    position: int

    def matches(self, record: dict[str, Any]) -> bool:
        """Whether a record is about this answer."""
        return record.get("generation") == self.generation and record.get("position") == self.position


class StepJournal:
    """The journal of one conversation, and the step wrapper that writes it.

    Args:
        folder: The conversation's.
        session_id: Its session.
        in_thread: Runs a blocking call to its end, one at a time, whatever happens to the caller.
        next_place: Where the next message goes.
        answer_place: Where the latest answer is.
    """

    def __init__(
        self,
        folder: Path,
        session_id: str,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
        next_place: Callable[[], Place],
        answer_place: Callable[[], Place],
    ) -> None:
        self._log = MessageLog(folder, session_id, STEPS)
        self._in_thread = in_thread
        self._next_place = next_place
        self._answer_place = answer_place
        self._writer = 0
        self._known: dict[str, dict[str, Any]] = {}
        self._is_complete = False
        self._seen: set[str] = set()
        self._has_warned = False

    @property
    def path(self) -> Path:
        """Its file."""
        return self._log.path

    # ── life; these calls block ──

    def open(self, open_calls: Collection[str], place: Place) -> None:
        """Read what is known about the calls of the latest answer that have no result in the conversation.

        Raises:
            LogDamagedError: The file is not as it was written.
            OSError: The system refuses.
        """
        records = self._log.open()
        self._writer = 1 + max((_writer_of(record) for record in records), default=0)
        for record in _without_fenced(records, self._log.path):
            if not open_calls or not place.matches(record):
                continue
            if record["step"] == "answered":
                self._is_complete = True
            elif record.get("call") in open_calls:
                self._known[record["call"]] = record
        if records and not self._known and not self._is_complete:
            self._log.replace(())

    def turn_number(self) -> int | None:
        """The number of the turn that was cut off, if the journal knows a call of it."""
        numbers = [record["turn"] for record in self._known.values() if isinstance(record.get("turn"), int)]
        return max(numbers, default=None)

    def close(self, *, remove: bool) -> None:
        """Let go of the file, and remove it if the conversation has everything that is in it."""
        was_open = self._log.is_open
        self._log.close()
        if remove and was_open:
            self._log.path.unlink(missing_ok=True)

    # ── the step wrapper ──

    async def __call__(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Record what becomes of a step, or return the result that is recorded.

        Raises:
            JournalError: A record could not be written. If it was that of a start, the tool was not called.
        """
        if step.kind == "model":
            return await self._record_answer(step, run)
        call_id = step.call.call_id
        self._seen.add(call_id)
        if step.is_resumed:
            record = self._known.get(call_id)
            if record is not None and record["step"] == "finished":
                return from_dict(ToolResult, record["result"])
            if self._is_complete:
                step.was_started = record is not None
        place = self._answer_place()

        async def started() -> None:
            await self._write("started", step, place, f"tool {step.call.tool_name!r} was not called")

        step.before_start(started)
        result = await run()
        if isinstance(result, ToolResult):
            lost = f"the result of a call of tool {step.call.tool_name!r} is not kept"
            await self._write("finished", step, place, lost, result=_as_dict(result))
        return result

    async def _record_answer(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        self._seen.clear()
        response = await run()
        if isinstance(response, ChatResponse) and _has_calls(response):
            if self._log.size > _LARGEST:  # the conversation has the results of all earlier answers
                await self._change(lambda: self._log.replace(()), "the answer of the model is not kept")
            # Not synced: after a loss of power the user may be asked about a call that was never started.
            await self._write("answered", step, self._next_place(), "the answer of the model is not kept", sync=False)
        return response

    async def _write(self, what: str, step: Step, place: Place, lost: str, *, sync: bool = True, **fields: Any) -> None:
        record = {
            "step": what,
            "writer": self._writer,
            "key": step.key,
            "call": step.call.call_id,
            "turn": step.call.turn_number,
            **attrs.asdict(place),
            **fields,
        }
        text = encode_message(record)[0]
        await self._change(lambda: self._log.append([text], sync=sync), lost)

    async def _change(self, change: Callable[[], None], lost: str) -> None:
        try:
            await self._in_thread(change)
        except OSError as error:
            reason = error.strerror or str(error)
            advice = "free some space or repair the file system, then resume the turn"
            raise JournalError(self._log.path, f"{reason}, so {lost} and the turn ends; {advice}") from error

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


def _writer_of(record: dict[str, Any]) -> int:
    writer = record.get("writer")
    return writer if isinstance(writer, int) else 0


def _without_fenced(records: Iterable[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The records that count: none of a writer that a newer one had replaced."""
    newest, fenced = 0, 0
    kept = []
    for record in records:
        if _writer_of(record) < newest:
            fenced += 1
            continue
        newest = _writer_of(record)
        kept.append(record)
    if fenced:
        logger.warning("%s: %d records of a process that had lost the conversation are ignored", path, fenced)
    return kept


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
