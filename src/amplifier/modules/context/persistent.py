"""context-persistent: like context-simple, and messages are on disk when `add_message` returns."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator, Hooks, Step
from amplifier.errors import AmplifierError, ModelError, SessionStateError
from amplifier.events import TOOL_ERROR, TOOL_POST
from amplifier.models import ChatResponse, ToolCallBlock, ToolResult, from_dict, to_dict
from amplifier.store import Conversation as StoredConversation
from amplifier.store import check_session_id, encode_message

from .._shared.configuration import choice, directory_name, flag, option, read_options
from .._shared.session import default_sessions_directory, run_shielded
from . import (
    Compaction,
    ContextOptions,
    Conversation,
    SharedContext,
    as_dict,
    checked_copy,
    from_record,
    is_aside,
    missing_results,
    open_calls,
    require_role,
)

__all__ = [
    "INTERRUPTED",
    "JournalError",
    "PersistentContext",
    "PersistentOptions",
    "ResumePolicy",
    "StepJournal",
    "mount",
    "read_persistent_options",
]

__amplifier_module_type__ = "context"

_logger = logging.getLogger("amplifier.modules.context-persistent")


class JournalError(AmplifierError):
    """The step journal couldn't be written, so the turn ended. The cause is the system's error.

    Attributes:
        path: The conversation's file.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self._message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self._message), self.__dict__)


# The step journal stores the state of the tool calls in the latest answer, so that a turn can be
# resumed after a crash. A transcript stores results in the order of the calls, so the result of a
# fast call may wait for the result of a slow one. The journal stores each result at once. Every
# record contains the position of the answer in the conversation:
#
#     answered    The model answered with tool calls. A call without another record never started.
#     started     This record is on disk before the tool is called.
#     finished    This record contains the result. It is on disk before the loop receives that.


class StepJournal:
    """The journal of one conversation, and the step wrapper that writes it.

    Args:
        context: The conversation, which serialises and shields changes to its file.

    Attributes:
        pending: A record to store together with the next message or record, which saves a sync.
    """

    def __init__(self, context: PersistentContext) -> None:
        self._context = context
        self._stored = context._stored
        self._known: dict[str, dict[str, JSON]] = {}
        self._is_complete = False
        self._seen: set[str] = set()
        self._has_warned = False
        self.pending: list[dict[str, JSON]] = []

    def open(self, open_calls: Collection[object], position: int) -> None:
        """Read the records of the calls that have no result in the conversation. This blocks.

        Args:
            open_calls: The ids of these calls.
            position: Position of their answer in the conversation.

        Raises:
            StoreDamagedError: The journal is damaged.
            OSError: The journal could not be read.
        """
        for record in self._stored.read_steps():
            if not open_calls or record["position"] != position:
                continue
            if record["step"] == "answered":
                self._is_complete = True
            elif record["call"] in open_calls:
                self._known[record["call"]] = record

    def turn_number(self) -> int | None:
        """Return the interrupted turn's number, or None if the journal has no calls from it."""
        numbers = [
            record["turn"] for record in self._known.values() if isinstance(record.get("turn"), int)
        ]
        return max(numbers, default=None)

    # ── the step wrapper ──

    async def __call__(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step and record its start and result, or return the recorded result.

        Raises:
            JournalError: A record could not be written. If it was the record of a start, the tool
                was not called.
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
        position = _last_answer([entry.message for entry in self._context._conversation.entries])

        async def started() -> None:
            await self._write(
                _record("started", step, position), f"Tool {step.call.tool_name!r} was not called"
            )

        step.before_start(started)
        result = await run()
        if isinstance(result, ToolResult):
            lost = f"The result of a call of tool {step.call.tool_name!r} is lost"
            await self._write(
                {**_record("finished", step, position), "result": _as_dict(result)}, lost
            )
        return result

    async def _note_answer(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        self._seen.clear()
        response = await run()
        if isinstance(response, ChatResponse) and _has_calls(response):
            next_position = len(self._context._conversation.entries)
            self.pending = [{**_record("answered", step, next_position), "call": ""}]
        return response

    async def _write(self, record: dict[str, JSON], lost: str) -> None:
        pending = self.pending
        try:
            await self._context._change(
                lambda: self._stored.write_steps([*pending, record]), lambda: None
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalError(
                self._stored.path,
                f"{reason}. {lost}, so the turn ends; resume it once the file can be written",
            ) from error
        self.pending = []

    # ── loops that make no steps ──

    def watch(self, event: str, data: dict[str, JSON]) -> None:
        """Log a warning once if the loop calls tools outside steps. This is a hook handler."""
        call_id = data.get("tool_call_id")
        if not self._has_warned and isinstance(call_id, str) and call_id not in self._seen:
            self._has_warned = True
            _logger.warning(
                "the orchestrator of this session does not run its tool calls as steps "
                "(coordinator.run_step), so its turns are not durable: a call that a crash "
                "interrupts is not resumed"
            )


def _record(kind: str, step: Step, position: int) -> dict[str, JSON]:
    return {
        "step": kind,
        "position": position,
        "key": step.key,
        "call": step.call.call_id,
        "turn": step.call.turn_number,
    }


def _has_calls(response: ChatResponse) -> bool:
    return bool(response.tool_calls) or any(
        isinstance(block, ToolCallBlock) for block in response.content
    )


def _as_dict(result: ToolResult) -> dict[str, JSON]:
    """Return a result as JSON. Output without a JSON form is replaced with the model's text."""
    try:
        encoded = to_dict(result)
        encode_message(encoded)
    except (ModelError, TypeError, ValueError):
        return {"success": result.success, "output": result.get_serialized_output()}
    return encoded


_T = TypeVar("_T")

ResumePolicy: TypeAlias = Literal["keep_file", "replace"]


@attrs.frozen(kw_only=True)
class PersistentOptions(ContextOptions):
    """The folder of the conversation, and the part of it that a request may hold.

    Attributes:
        folder: The conversation's own folder. It is created if it does not exist.
        session_id: The session of the conversation.
        resume_policy: The effect of `set_messages` after the conversation was loaded from its file.
            ``"keep_file"`` ignores the call, because the file is more complete. ``"replace"``
            replaces the messages.
        durable_turns: Whether to keep a journal of tool calls, so that a turn can be resumed after
            a crash. In that case, calls without a result stay open when the conversation is loaded,
            until the turn is resumed or the next one starts.
    """

    folder: Path = option(
        directory_name, key="path", default=attrs.Factory(default_sessions_directory)
    )
    session_id: str
    resume_policy: ResumePolicy = option(choice("keep_file", "replace"), default="keep_file")
    durable_turns: bool = option(flag, default=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_session_id(self.session_id)


def read_persistent_options(
    session_id: str, config: Mapping[str, object] | None
) -> PersistentOptions:
    """Read the configuration of a session's context.

    Raises:
        PlanError: The configuration is invalid, or the session id cannot name a folder. The error
            lists all problems.
    """
    options = read_options(PersistentOptions, "context-persistent", config, session_id=session_id)
    return attrs.evolve(options, folder=options.folder.absolute() / session_id)


INTERRUPTED = "[interrupted: the session ended before this call returned]"


# Reads use memory, which never contains more than the disk. Writes go through `_change`, one at a
# time: first to disk, and then to memory as soon as the change is known to be on disk. A write that
# has started continues after a cancellation of the caller. So a cancelled call has taken effect
# completely or not at all.


@final
class PersistentContext(SharedContext):
    """Keeps messages in a file and in memory. It must be opened before use, and closed.

    Args:
        options: The folder of the conversation, and the part of it that a request may hold.
        hooks: Receives the events of compactions.
        coordinator: Runs writes in such a way that the end of an event loop can't interrupt them.

    Attributes:
        turn_number: The number of the latest turn when the conversation was loaded.
    """

    def __init__(
        self,
        options: PersistentOptions,
        hooks: Hooks | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        super().__init__(options, hooks, coordinator)
        self._options: PersistentOptions = options
        self._stored = StoredConversation(options.folder, options.session_id)
        self._writing = anyio.Lock()
        self._thread: anyio.CapacityLimiter | None = None
        self._was_loaded = False
        self._left_open: set[object] = set()
        self._journal = StepJournal(self) if options.durable_turns else None
        self.turn_number: int = 0

    def __repr__(self) -> str:
        state = "open" if self._stored.is_open else "closed"
        count = len(self._conversation.entries)
        return (
            f"<PersistentContext {self._options.session_id!r} in {str(self._stored.path)!r} "
            f"{state} with {count} messages>"
        )

    # ── opening and closing ──

    async def open(self) -> None:
        """Lock and load the conversation.

        Tool calls that a crash left without a result get `INTERRUPTED` as their result. With
        ``durable_turns`` they stay open, so that the turn can be resumed, until a message other
        than a result is added.

        Raises:
            SessionLockedError: Another session has the conversation open.
            StoreDamagedError: The file is damaged.
            OSError: The file could not be read or written.
        """
        # With a separate limiter, busy tools can't delay writes.
        self._thread = anyio.CapacityLimiter(1)
        async with self._writing:
            await run_shielded(self._coordinator, self._open, name="open a conversation")

    async def _open(self) -> None:
        loaded, was_there = await self._in_thread(self._load)
        self._conversation.adopt(loaded)
        self._was_loaded = was_there

    def _load(self) -> tuple[Conversation, bool]:
        messages = self._stored.open()
        try:
            self.turn_number = sum(
                message["role"] == "user" and not is_aside(message) for message in messages
            )
            journal = self._stored.read_compactions()
            notes = missing_results(messages, INTERRUPTED)
            if self._journal is not None:
                self._left_open = {call.id for call in open_calls(messages)}
                self._journal.open(self._left_open, _last_answer(messages))
                self.turn_number = self._journal.turn_number() or self.turn_number
                notes = []
            else:
                # These calls will get no other result, because their session has ended.
                if notes:
                    self._stored.append([encode_message(note)[0] for note in notes])
                # Without a journal, the records would become outdated.
                self._stored.remove_steps()
        except BaseException:
            self._stored.close()
            raise
        loaded = self._conversation_of([*messages, *notes])
        loaded.restore(map(from_record, journal))
        return loaded, bool(messages)

    def _conversation_of(self, messages: Iterable[dict[str, JSON]]) -> Conversation:
        conversation = Conversation(self._options.chars_per_token, self._options.plan_tools)
        conversation.replace(messages)
        return conversation

    async def close(self) -> None:
        """Close the file once pending writes are done. Repeated calls are allowed."""
        await run_shielded(self._coordinator, self._close, name="close a conversation")

    async def _close(self) -> None:
        async with self._writing:
            if self._stored.is_open:
                await self._in_thread(self._close_stored)

    def _close_stored(self) -> None:
        try:
            if self._journal is not None and not open_calls(
                [entry.message for entry in self._conversation.entries]
            ):
                # Records of calls with results are harmless.
                with suppress(OSError):
                    self._stored.remove_steps()
        finally:
            self._stored.close()

    @property
    def journal(self) -> StepJournal | None:
        """The step wrapper that keeps turns durable, or None if that isn't configured."""
        return self._journal

    # ── the contract ──

    async def add_message(self, message: dict[str, JSON]) -> None:
        """Append a message, which is on disk when this returns. After an error, nothing is stored.

        Raises:
            ValueError: The message has no role, or no JSON form (`ModelError`).
            StoreDamagedError: Another process changed or removed the file.
            OSError: The file could not be written, for example because the disk is full.
            SessionStateError: The context is closed.
        """
        require_role(message)
        text, kept = encode_message(message)
        if self._left_open and message["role"] != "tool" and not is_aside(message):
            await self._close_left_open()
        pending = [] if self._journal is None else self._journal.pending

        def in_memory() -> None:
            self._conversation.append(kept)
            self._was_loaded = False
            pending.clear()

        await self._change(lambda: self._stored.append([text], pending), in_memory)

    async def _close_left_open(self) -> None:
        """Add results for open calls. These could not be resumed after the next message."""
        notes: list[dict[str, JSON]] = []

        def on_disk() -> None:
            # Another task may have added the results in the meantime.
            if self._left_open:
                notes.extend(
                    missing_results(
                        [entry.message for entry in self._conversation.entries], INTERRUPTED
                    )
                )
                self._stored.append([encode_message(note)[0] for note in notes])

        def in_memory() -> None:
            self._left_open.clear()
            for note in notes:
                self._conversation.append(note)

        await self._change(on_disk, in_memory)

    async def set_messages(self, messages: list[dict[str, JSON]]) -> None:
        """Replace all messages, in memory and on disk. After an error, nothing is replaced.

        An application that resumes a session passes its own transcript, which often lacks system
        messages that the file contains. So the call is ignored between loading the conversation and
        the first change to it, unless the config sets ``resume_policy: "replace"``.

        Raises:
            ValueError: A message has no role, or no JSON form (`ModelError`).
            OSError: The file could not be written.
            SessionStateError: The context is closed.
        """
        copied = [checked_copy(message) for message in messages]
        if self._was_loaded and self._options.resume_policy == "keep_file":
            _logger.info(
                "%s: set_messages is ignored, because the conversation was loaded from this file",
                self._stored.path,
            )
            return
        await self._replace(copied)

    async def clear(self) -> None:
        """Remove all messages, in memory and on disk. After an error, nothing is removed.

        Raises:
            OSError: The file could not be written.
            SessionStateError: The context is closed.
        """
        await self._replace([])

    # ── writing ──

    async def _store_compaction(self, number: int, compaction: Compaction) -> bool:
        conversation = self._conversation
        entries, latest = conversation.entries, conversation.latest
        is_stored = False

        def on_disk() -> None:
            nonlocal is_stored
            # Another task may have changed the conversation in the meantime.
            if conversation.entries is entries and conversation.latest is latest:
                self._stored.write_compaction(number, as_dict(compaction))
                is_stored = True

        def in_memory() -> None:
            if is_stored:
                conversation.record(number, compaction)

        await self._change(on_disk, in_memory)
        return is_stored

    async def _replace(self, messages: list[dict[str, JSON]]) -> None:
        conversation: Conversation | None = None

        def on_disk() -> None:
            nonlocal conversation
            encoded = [encode_message(message) for message in messages]
            conversation = self._conversation_of(kept for _, kept in encoded)
            self._stored.replace([text for text, _ in encoded])

        def in_memory() -> None:
            assert conversation is not None
            self._conversation.adopt(conversation)
            self._was_loaded = False
            self._left_open.clear()

        await self._change(on_disk, in_memory)

    async def _change(self, on_disk: Callable[[], None], in_memory: Callable[[], None]) -> None:
        async with self._writing:
            if not self._stored.is_open:
                raise SessionStateError(
                    f"the conversation of {self._options.session_id!r} in {self._stored.path} is "
                    "not open, so nothing can be stored; a context is open from mount until its "
                    "session is closed"
                )
            await run_shielded(
                self._coordinator, self._change_both, on_disk, in_memory, name="store messages"
            )

    async def _change_both(
        self, on_disk: Callable[[], None], in_memory: Callable[[], None]
    ) -> None:
        await self._in_thread(on_disk)
        in_memory()

    async def _in_thread(self, fn: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(fn, limiter=self._thread)


def _last_answer(messages: Sequence[dict[str, JSON]]) -> int:
    """Return the position of the assistant's latest message, or -1."""
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].get("role") == "assistant":
            return position
    return -1


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Open the session's conversation and mount it. `PersistentOptions` describes the config.

    Returns:
        The cleanup, which closes the conversation.
    """
    options = read_persistent_options(coordinator.session_id, config)
    context = PersistentContext(options, coordinator.hooks, coordinator)
    try:
        await context.open()
        await coordinator.mount("context", context)
        coordinator.turn_number = context.turn_number
        context.observe(coordinator, "context-persistent")
        if context.journal is not None:
            coordinator.register_step_wrapper(context.journal)
            for event in (TOOL_POST, TOOL_ERROR):
                coordinator.hooks.register(
                    event,
                    context.journal.watch,
                    name="context-persistent",
                    fields=("tool_call_id",),
                )
    except BaseException:
        await context.close()
        raise
    return context.close
