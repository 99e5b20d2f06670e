"""What all engines have in common: everything that clients call."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import anyio

from amplifier.errors import PlanError
from amplifier.models import Prompt, to_json
from amplifier.models._prompts import read_prompt
from amplifier.plan import validate_session_id

from ._engine import TurnStatus, WatchedEvent
from ._errors import TurnFailedError, TurnHeldError, TurnStoppedError
from ._storable import storable_text
from ._stores import ClientStore
from ._turn_rows import BLOCKS, unknown_turn_error


class StoredTurns:
    """The clients' half of `DurableEngine`, on a store.

    Args:
        store: Where turns are.
        poll: Seconds between two looks at a turn that is waited for.
    """

    def __init__(self, store: ClientStore, poll: float) -> None:
        self._turns = store
        self._poll = poll

    async def start(self, session_id: str, prompt: Prompt, *, turn_id: str | None = None) -> str:
        """See `DurableEngine.start`."""
        validate_session_id(session_id)
        stored = stored_prompt(prompt)
        if turn_id is not None:
            _check_turn_id(turn_id)
        return await self._turns.start(session_id, stored, turn_id)

    async def status(self, turn_id: str) -> TurnStatus:
        """See `DurableEngine.status`."""
        return await self._turns.status(_found_form(turn_id))

    async def result(self, turn_id: str) -> str:
        """See `DurableEngine.result`."""
        while True:
            status = await self.status(turn_id)
            if status.is_final or status.state == "held":
                return answer_of(status)
            await anyio.sleep(self._poll)

    def watch(self, turn_id: str, *, after: int = 0) -> AsyncIterator[WatchedEvent]:
        """See `DurableEngine.watch`."""
        return _Watch(self._turns, self._poll, turn_id, after)

    async def approve(self, turn_id: str, question_id: str, option: str) -> None:
        """See `DurableEngine.approve`."""
        shown = [storable_text(text, allows_nul=False) for text in (question_id, option)]  # as status() has them
        await self._turns.answer(_found_form(turn_id), *shown)

    async def stop(self, turn_id: str, *, graceful: bool = False, reason: str | None = None) -> None:
        """See `DurableEngine.stop`."""
        await self._turns.request_stop(_found_form(turn_id), graceful, reason)

    async def resume(self, turn_id: str) -> None:
        """See `DurableEngine.resume`."""
        await self._turns.resume(_found_form(turn_id))

    async def release(self, turn_id: str) -> None:
        """See `DurableEngine.release`."""
        await self._turns.release(_found_form(turn_id))

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """See `DurableEngine.messages`."""
        is_possible = session_id == storable_text(session_id, allows_nul=False)
        return await self._turns.messages(session_id) if is_possible else []


def stored_prompt(given: Prompt) -> str:
    """A prompt as the text that engines store; one in blocks is JSON behind a mark.

    Raises:
        TypeError: It is no prompt.
        ValueError: A database cannot store it.
    """
    prompt = read_prompt(given)
    if isinstance(prompt, list) or prompt.startswith(BLOCKS):
        return BLOCKS + to_json(prompt)
    _check_text(prompt)
    return prompt


def _check_text(prompt: str) -> None:
    if prompt != storable_text(prompt, allows_nul=False):
        raise ValueError(
            f"a prompt must be text without NUL and lone surrogates, which databases do not store, got {prompt!r:.80}; remove them "
            "from the text, or decode it with errors='replace'"
        )


def _check_turn_id(turn_id: object) -> None:
    if not isinstance(turn_id, str):
        raise TypeError(f"a turn_id must be a str, got {type(turn_id).__name__}: {turn_id!r:.80}")
    try:
        validate_session_id(turn_id)
    except PlanError:
        raise ValueError(
            "a turn_id must have the form of a session id, 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with "
            f"'.'; got {turn_id!a:.80}"
        ) from None


def _found_form(turn_id: Any) -> str:
    """The id, if a turn can have it.

    Raises:
        UnknownTurnError: It cannot be stored, so it cannot be asked for.
    """
    if isinstance(turn_id, str) and turn_id == storable_text(turn_id, allows_nul=False):
        return turn_id
    raise unknown_turn_error(turn_id)


class _Watch:
    """The events of one turn; no async generator, which someone would have to close."""

    def __init__(self, store: ClientStore, poll: float, turn_id: str, after: int) -> None:
        self._store = store
        self._poll = poll
        self._turn_id = turn_id
        self._after = after
        self._read: deque[WatchedEvent] = deque()

    def __aiter__(self) -> AsyncIterator[WatchedEvent]:
        return self

    async def __anext__(self) -> WatchedEvent:
        while not self._read:
            events, status = await self._store.events_after(_found_form(self._turn_id), self._after)
            if not events:
                if status.is_final:
                    raise StopAsyncIteration
                await anyio.sleep(self._poll)
            self._read.extend(events)
        event = self._read.popleft()
        self._after = event.position
        return event


def answer_of(status: TurnStatus) -> str:
    """The answer of a turn that does not go on.

    Raises:
        TurnFailedError: It has none, because it failed; or was stopped, or is held.
    """
    turn_id = status.turn_id
    if status.state == "completed":
        return status.answer or ""
    if status.state == "stopped":
        raise TurnStoppedError(f"turn {turn_id!r} was stopped before it had an answer", turn_id=turn_id)
    if status.state == "held":
        raise TurnHeldError(f"turn {turn_id!r} is held: {status.error}", turn_id=turn_id)
    raise TurnFailedError(
        f"turn {turn_id!r} failed with {status.error_type}: {status.error}",
        turn_id=turn_id,
        error_type=status.error_type or "",
    )
