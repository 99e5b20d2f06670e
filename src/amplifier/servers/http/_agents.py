"""Turns of single requests: their sessions, their number, and their end at shutdown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import anyio
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import ApprovalSystem, Step
from amplifier.events import PROVIDER_REQUEST
from amplifier.kernel import AmplifierSession
from amplifier.models import HookResult
from amplifier.models.prompts import Prompt
from amplifier.models.turns import Ended, Show, TurnRecord
from amplifier.shared_sessions import ClientTools, KeptMessages, LiveRuns, LiveSessions, run_turn

from ..sessions import SessionCheck, SessionFactory, SessionRequest
from .requests import Limits, Problem

Flush: TypeAlias = Callable[[], Awaitable[object]]

_GRACE_SHARE = 0.8
"""The share of the shutdown time in which turns may finish their step."""


@attrs.define(kw_only=True)
class Ask:
    """One turn of a request, in a new session.

    Attributes:
        history: The conversation before the turn.
        prompt: The prompt. None continues the turn at the end of the history.
        settings: Members for every `ChatRequest` of the turn.
        schema: The JSON Schema of the answer, or None.
        tools: The client's tools.
        notes: Text from the client that the model gets in this turn only.
        messages: The conversation after the turn.
        session: The session, once it is open.
    """

    history: list[dict[str, JSON]]
    prompt: Prompt | None
    settings: dict[str, JSON] = attrs.field(factory=dict)
    schema: dict[str, JSON] | None = None
    tools: ClientTools = attrs.field(factory=ClientTools)
    notes: str = ""
    messages: list[dict[str, JSON]] = attrs.field(factory=list)
    session: AmplifierSession | None = attrs.field(default=None, init=False)

    async def run(
        self, session: AmplifierSession, record: TurnRecord, show: Show, flush: Flush | None = None
    ) -> Ended:
        """Run the turn in a session that has just been opened.

        Raises:
            Problem: The agent doesn't support the request.
            Exception: ``show`` raised an exception.
        """
        self.session, context = session, session.coordinator.get("context")
        if context is None:
            raise Problem(503, "the plan's context is not available", code="agent_failed")
        if (name := self.tools.clash(session)) is not None:
            message = (
                f"tools: the agent has its own tool {name!r}, which runs inside; give yours "
                "another name"
            )
            raise Problem(400, message, code="tool_name_taken", param="tools")
        if self.history:
            await context.set_messages(self.history)
        await self.tools.offer(session)
        if self.notes:
            session.coordinator.hooks.register(PROVIDER_REQUEST, self._inject, name="servers.notes")
        has_set = not self.settings

        async def set_up(step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal has_set
            if step.kind == "model" and step.call.iteration:
                has_set = True
                for name, value in self.settings.items():
                    setattr(step.arguments, name, value)
            return await run()

        if self.settings:
            session.coordinator.register_step_wrapper(set_up)
        ended = await run_turn(session, self.prompt, record, show, schema=self.schema, flush=flush)
        if ended.error is None and not has_set:
            names = ", ".join(self.settings)
            message = (
                "the agent's loop does not run its model calls as steps, so the model did not get "
                f"{names}"
            )
            raise Problem(503, message, code="agent_failed")
        self.messages = await context.get_messages()
        return ended

    async def _inject(self, event: str, data: dict[str, JSON]) -> HookResult:
        return HookResult(action="inject_context", context_injection=self.notes, ephemeral=True)


@attrs.define(kw_only=True, eq=False)
class Agents:
    """The shared state of all routes. It admits turns, up to the limit, until the server stops.

    Attributes:
        make: Makes a session.
        check: Raises if an opened session can't be used.
        limits: The server's limits.
        name: The agent's name. Clients choose it as the model.
        live: The sessions that stay open, and the tasks of everything that outlives a request.
        runs: The runs that clients can return to.
        kept: The conversations that clients continue by name or that wait for clients' results.
        at_end: Functions to call when the server is being stopped.
    """

    make: SessionFactory
    check: SessionCheck
    limits: Limits
    name: str
    live: LiveSessions[Any]
    runs: LiveRuns[Any] = attrs.field(
        default=attrs.Factory(lambda self: LiveRuns(self.live.start_soon), takes_self=True),
        init=False,
    )
    kept: KeptMessages = attrs.field(factory=KeptMessages, init=False)
    at_end: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _running: set[AmplifierSession] = attrs.field(factory=set, init=False)
    _over: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    _stopping: bool = attrs.field(default=False, init=False)

    def __repr__(self) -> str:
        stopping = ", stopping" if self._stopping else ""
        return f"{len(self.live)} sessions, {len(self._running)} turns{stopping}"

    def require_running(self) -> None:
        """Raise if the server is being stopped."""
        if self._stopping:
            raise Problem(
                503, "the server is being stopped", code="stopping", headers={"Retry-After": "5"}
            )

    def require_room(self) -> None:
        """Raise if no turn can start now."""
        self.require_running()
        if len(self._running) >= self.limits.turns:
            message = f"{self.limits.turns} turns are running, which is the limit; try again later"
            raise Problem(429, message, code="too_many_turns", headers={"Retry-After": "1"})

    @contextmanager
    def admit(self, session: AmplifierSession) -> Iterator[None]:
        """Count a turn inside the block. The block includes the opening of a new session."""
        self.require_room()
        self._running.add(session)
        try:
            yield
        finally:
            self._running.discard(session)
            if not self._running:
                self._over.set()

    async def end_turns(self) -> None:
        """Admit no more turns, request the end of the running ones, and wait for them.

        A turn that waits for a person's answer is stopped at once. Other turns may finish their
        step during most of the time limit. The rest of the time is for unwinding and for closing
        the sessions.
        """
        self._stopping = True
        grace, reason = self.limits.shutdown_seconds * _GRACE_SHARE, "the server is being stopped"
        for stop in self.at_end:
            stop()
        waiting = {live.session for live in self.live.all() if live.questions.waiting()}
        for session in self._running:
            if session in waiting:
                session.coordinator.cancellation.request_immediate(reason=reason)
            else:
                session.coordinator.cancellation.request_graceful(grace=grace, reason=reason)
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()

    def describe_running(self) -> str:
        """Describe the turns that the shutdown waits for. Without any, return an empty text."""
        if not self._running:
            return ""
        asked = sum(bool(live.questions.waiting()) for live in self.live.all())
        turns = "1 turn" if len(self._running) == 1 else f"{len(self._running)} turns"
        stopped = f" ({asked} of them waits for an answer and is stopped now)" if asked else ""
        return f"Stopping: up to {self.limits.shutdown_seconds:g} s for {turns} to end{stopped}."

    async def run_once(
        self,
        ask: Ask,
        record: TurnRecord,
        show: Show,
        *,
        flush: Flush | None = None,
        approvals: ApprovalSystem | None = None,
    ) -> Ended:
        """Run one turn in a new session."""
        session = self.make(SessionRequest(approvals=approvals))
        with self.admit(session):
            async with session:
                self.check(session)
                return await ask.run(session, record, show, flush)
