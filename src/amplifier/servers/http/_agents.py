"""Sessions for requests: how they are made, checked and given a conversation; how many turns run, and how they end at shutdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import anyio
import attrs

from amplifier.contracts import ApprovalSystem
from amplifier.kernel import AmplifierSession
from amplifier.live import run_turn
from amplifier.turns import Ended, Show, TurnRecord

from ._limits import Limits
from ._problems import Problem

__all__ = ["Agents", "SessionFactory", "SessionRequest", "Turns"]


@attrs.frozen(kw_only=True)
class SessionRequest:
    """What a session is needed for.

    Attributes:
        session_id: Its id; None for one of a single turn, whose conversation comes with the request. Such a session needs a
            context in memory.
        approvals: Asks the person; None if the protocol has no way to ask, and what would be asked is denied.
        is_resumed: A session of this id existed before.
    """

    session_id: str | None = None
    approvals: ApprovalSystem | None = None
    is_resumed: bool = False


SessionFactory: TypeAlias = Callable[[SessionRequest], AmplifierSession]
"""Makes a session, which the server opens and closes."""


class Turns:
    """Admits turns, up to the limit, until the server is being stopped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: set[AmplifierSession] = set()
        self._over = anyio.Event()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Turns: {len(self._running)} running{', stopping' if self._stopping else ''}>"

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @contextmanager
    def admit(self, session: AmplifierSession) -> Iterator[None]:
        """Count a turn inside the block; it begins with opening the session, if the turn opens one.

        Raises:
            Problem: There are too many, or the server is being stopped.
        """
        if self._stopping:
            raise Problem(503, "the server is being stopped", code="stopping", headers={"Retry-After": "5"})
        if len(self._running) >= self._limits.turns:
            message = f"{self._limits.turns} turns are running, which is the limit; try again later"
            raise Problem(429, message, code="too_many_turns", headers={"Retry-After": "1"})
        self._running.add(session)
        try:
            yield
        finally:
            self._running.discard(session)
            if not self._running:
                self._over.set()

    def begin_shutdown(self) -> None:
        """Admit no more turns, and ask those that run to end: after the running step, or when the time is over."""
        self._stopping = True
        for session in self._running:
            session.coordinator.cancellation.request_graceful(
                grace=self._limits.shutdown_seconds, reason="the server is being stopped"
            )

    async def wait_idle(self) -> None:
        """Wait until no turn runs."""
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()

    @property
    def deadline(self) -> float:
        """Seconds for `wait_idle` after `begin_shutdown`: time for the turns, and for what they have to unwind."""
        return self._limits.shutdown_seconds + math.ceil(self._limits.shutdown_seconds / 2)


@attrs.frozen(kw_only=True)
class Agents:
    """What all routes share.

    Attributes:
        make: Makes sessions.
        check: Raises if a session that has just been opened cannot be used.
        name: The agent's name, which is what clients choose as the model.
    """

    make: SessionFactory
    check: Callable[[AmplifierSession], None]
    limits: Limits
    turns: Turns
    name: str

    async def run_once(
        self,
        history: list[dict[str, Any]],
        prompt: str,
        record: TurnRecord,
        show: Show,
        *,
        approvals: ApprovalSystem | None = None,
    ) -> Ended:
        """Run one turn in a session of its own, after the given messages.

        Raises:
            Problem: There are too many turns, or the session cannot be used.
            Exception: What opening it or ``show`` raises.
        """
        session = self.make(SessionRequest(approvals=approvals))
        with self.turns.admit(session):
            async with session:
                self.check(session)
                context = session.coordinator.get("context")
                if history:
                    if context is None:
                        raise Problem(503, "the plan's context is not available", code="agent_failed")
                    await context.set_messages(history)
                return await run_turn(session, prompt, record, show)
