"""context-persistent: as context-simple, and every message is on disk before `add_message` returns.

Reading is done in memory, which shows what is on disk, and never more. Writing goes through `_change`: one writer at a time, the disk
first, then memory in the same step in which the disk is known to have it; once begun it is taken to its end, whatever happens to the
caller. So a cancelled call has happened completely or not at all. `amplifier.store` has the file.

The step journal is what is known about the tool calls of the latest answer, so that a turn can be resumed after a crash. A transcript
holds results in the order of the calls, so the result of a fast call may have to wait for that of a slow one; in the journal each
result is on disk as soon as it is there. Records, each with the position of the answer in the conversation:

    answered    the model answered with tool calls; from here on a call without a further record was never started
    started     on disk before the tool is called
    finished    the result, on disk before the loop gets it
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final

import anyio
import anyio.to_thread
import attrs

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
        context: The conversation; changes its file one after the other, to the end, whatever happens to the caller.

    Attributes:
        pending: A record that is stored together with the next message or record, which saves a sync.
    """

    def __init__(self, context: PersistentContext) -> None:
        self._context = context
        self._stored = context._stored
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
        numbers = [
            record["turn"] for record in self._known.values() if isinstance(record.get("turn"), int)
        ]
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
        position = _last_answer([entry.message for entry in self._context._conversation.entries])

        async def started() -> None:
            await self._write(
                _record("started", step, position), f"Tool {step.call.tool_name!r} was not called"
            )

        step.before_start(started)
        result = await run()
        if isinstance(result, ToolResult):
            lost = f"The result of a call of tool {step.call.tool_name!r} is not kept"
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

    async def _write(self, record: dict[str, Any], lost: str) -> None:
        pending = self.pending
        try:
            await self._context._change(
                lambda: self._stored.write_steps([*pending, record]), lambda: None
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalError(
                self._stored.path, f"{reason}. {lost}, so the turn ends; resume it then"
            ) from error
        self.pending = []

    # ── loops that make no steps ──

    def watch(self, event: str, data: dict[str, Any]) -> None:
        """A hook handler: log once that a loop calls tools without making steps of the calls."""
        call_id = data.get("tool_call_id")
        if not self._has_warned and isinstance(call_id, str) and call_id not in self._seen:
            self._has_warned = True
            _logger.warning(
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
    return bool(response.tool_calls) or any(
        isinstance(block, ToolCallBlock) for block in response.content
    )


def _as_dict(result: ToolResult) -> dict[str, Any]:
    """A result as JSON; one that has no JSON form as the text that the model gets."""
    try:
        shown = to_dict(result)
        encode_message(shown)
    except (ModelError, TypeError, ValueError):
        return {"success": result.success, "output": result.get_serialized_output()}
    return shown


_T = TypeVar("_T")

ResumePolicy: TypeAlias = Literal["keep_file", "replace"]


@attrs.frozen(kw_only=True)
class PersistentOptions(ContextOptions):
    """Where the conversation is kept and how much of it a request may hold.

    Attributes:
        folder: The conversation's own folder, created if it does not exist.
        session_id: The session of the conversation.
        resume_policy: What `set_messages` does after the conversation was loaded from its file: ``"keep_file"`` ignores
            it, because the file is the fuller record; ``"replace"`` obeys.
        durable_turns: Keep a journal of tool calls, so that a turn that a crash cuts off can be resumed where it was:
            calls without a result stay open when the conversation is loaded, until the turn is resumed or the next begins.
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


def read_persistent_options(session_id: Any, config: Mapping[str, Any] | None) -> PersistentOptions:
    """Read the configuration of a session's context.

    Raises:
        PlanError: The configuration is wrong, or the session id cannot name a folder; it lists all problems.
    """
    options = read_options(PersistentOptions, "context-persistent", config, session_id=session_id)
    return attrs.evolve(options, folder=options.folder.absolute() / session_id)


INTERRUPTED = "[interrupted: the session ended before this call returned]"


@final
class PersistentContext(SharedContext):
    """Keeps messages in a file and in memory; to be opened before anything else, and closed.

    Args:
        options: Where, and how much a request may hold.
        hooks: Where compactions are emitted.
        coordinator: Runs writes where the end of an event loop does not cut them off.

    Attributes:
        turn_number: Of the latest turn when the conversation was loaded.
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
        self._left_open: set[Any] = set()
        self._journal = StepJournal(self) if options.durable_turns else None
        self.turn_number: int = 0

    def __repr__(self) -> str:
        state = "open" if self._stored.is_open else "closed"
        return f"<PersistentContext {self._options.session_id!r} in {str(self._stored.path)!r} {state} with {len(self._conversation.entries)} messages>"

    # ── life ──

    async def open(self) -> None:
        """Take the conversation and load it; tool calls that a crash left without a result get one that states it.

        With ``durable_turns`` they stay open, for the turn to be resumed, until another message than a result is added.

        Raises:
            SessionLockedError: Another session has it open.
            StoreDamagedError: Its file is not as it was written.
            OSError: The system refuses.
        """
        # Its own one, so that busy tools do not keep messages from being stored.
        self._thread = anyio.CapacityLimiter(1)
        async with self._writing:
            await run_shielded(self._coordinator, self._open, name="open a conversation")

    async def _open(self) -> None:
        loaded, was_there = await self._in_thread(self._load)
        self._conversation.adopt(loaded)
        self._was_loaded = was_there

    def _load(self) -> tuple[Conversation, bool]:
        found = self._stored.open()
        try:
            self.turn_number = sum(
                message["role"] == "user" and not is_aside(message) for message in found
            )
            journal = self._stored.read_compactions()
            notes = missing_results(found, INTERRUPTED)
            if self._journal is not None:
                self._left_open = {call.id for call in open_calls(found)}
                self._journal.open(self._left_open, _last_answer(found))
                self.turn_number = self._journal.turn_number() or self.turn_number
                notes = []
            else:
                if notes:
                    # Provider and tools of the last session are gone, so these calls get no other result.
                    self._stored.append([encode_message(note)[0] for note in notes])
                self._stored.remove_steps()  # no one keeps them up to date any more
        except BaseException:
            self._stored.close()
            raise
        loaded = self._conversation_of([*found, *notes])
        loaded.restore(map(from_record, journal))
        return loaded, bool(found)

    def _conversation_of(self, messages: Iterable[dict[str, Any]]) -> Conversation:
        conversation = Conversation(self._options.chars_per_token, self._options.plan_tools)
        conversation.replace(messages)
        return conversation

    async def close(self) -> None:
        """Close the file when no write is under way; nothing is removed. May be called again."""
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
                with suppress(OSError):  # records of calls that all have results do no harm
                    self._stored.remove_steps()
        finally:
            self._stored.close()

    @property
    def journal(self) -> StepJournal | None:
        """The step wrapper that keeps turns durable, if that is configured."""
        return self._journal

    # ── the contract ──

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message at the end; on return it is on disk.

        Raises:
            ValueError: It has no role, or no JSON form (`ModelError`); nothing was stored.
            StoreDamagedError: Another process changed or removed the file; nothing was stored.
            OSError: The system refuses, for example because the disk is full; nothing was stored.
            SessionStateError: The context is closed; nothing was stored.
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
        """Give calls that were left open results that state it: with what comes now, the turn cannot be resumed any more."""
        notes: list[dict[str, Any]] = []

        def on_disk() -> None:
            if self._left_open:  # looked at again: another call may have been faster
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

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything stored, on disk, too; ignored where the conversation came from its file and has not gone on.

        An application that resumes a session hands in the transcript it kept itself, which often lacks system messages; the
        file has everything. ``resume_policy: "replace"`` makes this call always obeyed, and after `clear` it is, too.

        Raises:
            ValueError: A message has no role, or no JSON form (`ModelError`); nothing was replaced.
            OSError: The system refuses; nothing was replaced.
            SessionStateError: The context is closed; nothing was replaced.
        """
        given = [checked_copy(message) for message in messages]
        if self._was_loaded and self._options.resume_policy == "keep_file":
            _logger.info(
                "%s: set_messages is ignored, the conversation was loaded from here",
                self._stored.path,
            )
            return
        await self._replace(given)

    async def clear(self) -> None:
        """Remove everything stored, on disk, too; the file stays, empty.

        Raises:
            OSError: The system refuses; nothing was forgotten.
            SessionStateError: The context is closed; nothing was forgotten.
        """
        await self._replace([])

    # ── writing ──

    async def _store_compaction(self, number: int, made: Compaction) -> bool:
        conversation = self._conversation
        entries, latest = conversation.entries, conversation.latest
        stored: list[Compaction] = []

        def on_disk() -> None:
            if (
                conversation.entries is entries and conversation.latest is latest
            ):  # another change may have been faster
                self._stored.write_compaction(number, as_dict(made))
                stored.append(made)

        def in_memory() -> None:
            for each in stored:
                conversation.record(number, each)

        await self._change(on_disk, in_memory)
        return bool(stored)

    async def _replace(self, messages: list[dict[str, Any]]) -> None:
        made: list[Conversation] = []

        def on_disk() -> None:
            encoded = [encode_message(message) for message in messages]
            made.append(self._conversation_of(kept for _, kept in encoded))
            self._stored.replace([text for text, _ in encoded])

        def in_memory() -> None:
            self._conversation.adopt(made[0])
            self._was_loaded = False
            self._left_open.clear()

        await self._change(on_disk, in_memory)

    async def _change(self, on_disk: Callable[[], None], in_memory: Callable[[], None]) -> None:
        async with self._writing:
            if not self._stored.is_open:
                raise SessionStateError(
                    f"the conversation of {self._options.session_id!r} in {self._stored.path} is not open, so nothing more can be stored in it; "
                    "a context is open from mount until its session is closed"
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


def _last_answer(messages: Sequence[dict[str, Any]]) -> int:
    """The position of the latest message of the assistant; -1 if there is none."""
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].get("role") == "assistant":
            return position
    return -1


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Open the session's conversation and mount it; see `PersistentOptions` for its configuration.

    Returns:
        The function that closes it.
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
