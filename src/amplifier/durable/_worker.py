"""A worker: runs turns that it was given, listens for stops and answers, and takes over the turns of workers that have died."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from ._engine import SessionFactory
from ._errors import EngineClosedError
from ._running_turn import RunningTurn
from ._tables._turn_store import TurnStore
from ._turn_rows import ClaimedTurn

logger = logging.getLogger("amplifier.durable")

LEFT = -1
"""The beats of a worker that has left in good order."""


def new_worker_name() -> str:
    """A name that no other worker ever has."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Worker:
    """One worker of an engine.

    Args:
        store: Where turns are.
        make_session: Makes the session of a turn.
        poll: Seconds between two looks at the store.
        lease: Seconds without a beat after which a worker counts as dead, by the clock of the one who looks.
        take_over: Makes the turns of a dead worker ready for others.

    Attributes:
        name: Its own; no other worker ever has it.
    """

    def __init__(
        self,
        store: TurnStore,
        make_session: SessionFactory,
        poll: float,
        lease: float,
        take_over: Callable[[str], Awaitable[None]],
    ) -> None:
        self.name: str = new_worker_name()
        self._store = store
        self._make_session = make_session
        self._poll = poll
        self._lease = lease
        self._take_over = take_over
        self._running: dict[str, RunningTurn] = {}
        self._seen: dict[str, tuple[int, float]] = {}

    async def run_turn(self, turn: ClaimedTurn) -> bool:
        """Run a turn that was claimed, until it ends or is lost.

        Returns:
            Whether it has ended or is held; False if another worker has it.

        Raises:
            EngineUnavailableError: What happens cannot be recorded any more.
        """
        if turn.turn_id in self._running:  # this worker was taken for dead, and given its own turn
            self._running[turn.turn_id].lose()
        running = self._running[turn.turn_id] = RunningTurn(self._store, turn)
        try:
            return await running.run(self._make_session)
        finally:
            if self._running.get(turn.turn_id) is running:
                del self._running[turn.turn_id]

    async def listen(self) -> None:
        """Pass news to the running turns and their events to watchers, for ever."""
        while True:
            await anyio.sleep(self._poll)
            for running in list(self._running.values()):
                await running.flush()
            if self._running:
                await self._hear_news()

    async def _hear_news(self) -> None:
        running = dict(self._running)
        asking = [turn_id for turn_id, each in running.items() if each.is_asking]
        attempts, answers = await self._store.news(self.name, asking)
        for turn_id, each in running.items():
            attempt, stop = attempts.get(turn_id, (None, None))
            if attempt != each.turn.attempt:
                if self._running.get(turn_id) is each:  # else it has just ended
                    each.lose()
            elif stop is not None and stop != each.turn.stop:
                each.stop(stop)
        for (turn_id, question_id), option in answers.items():
            running[turn_id].answer(question_id, option)

    async def beat(self) -> None:
        """Show that this worker lives and look after the others, for ever."""
        while True:
            await self.beat_once()
            await anyio.sleep(self._lease / 4)

    async def beat_once(self) -> None:
        """Beat, and take over what dead workers have left."""
        beats = await self._store.beat(self.name)
        now = time.monotonic()
        self._seen = {
            name: self._seen[name] if self._seen.get(name, (None, 0.0))[0] == count else (count, now)
            for name, count in beats.items()
            if name != self.name
        }
        for name, (count, since) in self._seen.items():
            if count == LEFT or now - since > self._lease:
                logger.info(
                    "worker %s has %s; its turns go on here or elsewhere", name, "left" if count == LEFT else "died"
                )
                await self._take_over(name)

    async def leave(self) -> None:
        """Let others take over at once."""
        with anyio.move_on_after(5.0, shield=True), suppress(EngineClosedError):  # then others notice after their lease
            await self._store.leave(self.name, patience=1.0)
