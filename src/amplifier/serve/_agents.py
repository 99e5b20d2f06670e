"""Sessions for requests: how they are made, checked, counted and given a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs

from amplifier.contracts import ApprovalSystem
from amplifier.kernel import AmplifierSession
from amplifier.models import TurnEvent

from ._limits import Limits
from ._problems import Problem
from ._turns import Turns

__all__ = ["Agents", "SessionFactory", "SessionRequest"]


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
        show: Callable[[TurnEvent], Awaitable[None]],
        *,
        approvals: ApprovalSystem | None = None,
    ) -> str:
        """Run one turn in a session of its own, after the given messages; returns the answer.

        Raises:
            Problem: There are too many turns, or the session cannot be used.
            Exception: Whatever the turn raises.
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
                async with session.stream(prompt) as events:
                    async for event in events:
                        await show(event)
                return events.result or ""
