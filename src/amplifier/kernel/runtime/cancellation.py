"""The cancellation token: none → graceful → immediate, over the scope of the running turn.

The token itself only keeps state, so it may be used from any thread and from a signal handler: no lock is taken (a
handler that interrupts its own thread must not wait for it) and the loop is reached through `Loop.soon` only. The
session binds a turn's scope to it and is notified of requests.
"""

from __future__ import annotations

import enum
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, final

import anyio
import attrs

from .backend import Loop, Spawn, start_timer
from .deadlines import DeadlinePassed, TimeBudget, Watchdog, call_foreign, check_timeout, run_bounded
from .uninterrupted import run_section

logger: logging.Logger = logging.getLogger("amplifier.cancellation")

CALLBACK_SECONDS = 5.0
"""Deadline of one cancel callback: it runs while a caller waits for the session to stop."""


class CancellationState(enum.Enum):
    """How urgently a turn is asked to stop."""

    NONE = "none"
    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"


@attrs.frozen
class CancelRequest:
    """A request that changed the state: what the session announces as ``cancel:requested``."""

    state: CancellationState
    grace: float | None = None
    reason: str | None = None


@final
class CancellationToken:
    """Asks the turns of one session, and of its children, to stop.

    Graceful lets running tools finish and starts nothing new; immediate cancels the turn's scope.
    """

    def __init__(self) -> None:
        self._claims: dict[CancellationState, object] = {}
        self._children: tuple[CancellationToken, ...] = ()
        self._callbacks: tuple[Callable[[], Any], ...] = ()
        self._tools: dict[str, str] = {}
        self._requests: list[CancelRequest] = []
        self._scope: anyio.CancelScope | None = None
        self._loop: Loop | None = None
        self._spawn: Spawn | None = None
        self._announce: Callable[[], None] | None = None
        self._budget: TimeBudget | None = None
        self._watch: Watchdog | None = None
        self._stop_grace: Callable[[], None] | None = None
        self._reason: str | None = None
        self._grace: float | None = None
        self.asked_at: float | None = None
        """When the latest request came, by the monotonic clock."""

    def __repr__(self) -> str:
        return (
            f"<CancellationToken {self.state}, {len(self._tools)} tools running, {len(self._children)} children"
            f"{', bound to a turn' if self._scope is not None else ''}>"
        )

    # ── state ──

    @property
    def state(self) -> str:
        """``"none"``, ``"graceful"`` or ``"immediate"``."""
        if CancellationState.IMMEDIATE in self._claims:
            return "immediate"
        return "graceful" if self._claims else "none"

    @property
    def is_cancelled(self) -> bool:
        """Whether anything was requested."""
        return bool(self._claims)

    @property
    def is_graceful(self) -> bool:
        """Whether the request is exactly graceful."""
        return bool(self._claims) and CancellationState.IMMEDIATE not in self._claims

    @property
    def is_immediate(self) -> bool:
        """Whether the request is immediate."""
        return bool(self._claims) and CancellationState.IMMEDIATE in self._claims

    @property
    def reason(self) -> str | None:
        """What the latest requester gave as a reason."""
        return self._reason

    def request_graceful(self, grace: float | None = None, *, reason: str | None = None) -> bool:
        """Ask to stop at the next good moment.

        Args:
            grace: Seconds after which the request turns immediate by itself.
            reason: Shown in events and errors.

        Returns:
            True if this call changed the state.

        Raises:
            TypeError: ``grace`` is no number.
            ValueError: It is not positive and finite.
        """
        check_timeout(grace)
        if self._claims:
            return False
        changed = self._claim(CancelRequest(CancellationState.GRACEFUL, grace, reason))
        for child in self._children:
            child.request_graceful(grace, reason=reason)
        return changed

    def request_immediate(self, *, reason: str | None = None) -> bool:
        """Stop now: cancel the running turn, its tools and its child sessions.

        Returns:
            True if this call changed the state.
        """
        if self.is_immediate:
            return False
        changed = self._claim(CancelRequest(CancellationState.IMMEDIATE, None, reason))
        self.stop_children(reason)
        return changed

    def request_cancellation(self) -> None:
        """The same as `request_graceful`, kept for older callers."""
        self.request_graceful()

    def reset(self) -> None:
        """Back to none; running tools are forgotten, children and callbacks stay as they are."""
        self._claims = {}
        self._requests.clear()
        self._tools.clear()
        self._reason = self._grace = self.asked_at = None
        self._end_grace()

    def _claim(self, request: CancelRequest) -> bool:
        mine = object()
        # setdefault is one atomic step: of several threads exactly one wins, without a lock.
        if self._claims.setdefault(request.state, mine) is not mine:
            return False
        self._reason, self._grace, self.asked_at = request.reason, request.grace, time.monotonic()
        self._requests.append(request)
        if self._loop is not None:
            self._loop.soon(self._act)
        return True

    # ── children ──

    def register_child(self, child: CancellationToken) -> None:
        """Pass every request on to ``child``; the present state is applied at once."""
        if not isinstance(child, CancellationToken):
            raise TypeError(f"expected a CancellationToken, got {type(child).__name__}")
        self._children = (*self._children, child)
        if self.is_immediate:
            child.request_immediate(reason=self._reason)
        elif self.is_cancelled:
            child.request_graceful(self._grace, reason=self._reason)

    def unregister_child(self, child: CancellationToken) -> None:
        """Stop passing requests on to ``child``."""
        self._children = tuple(other for other in self._children if other is not child)

    def stop_children(self, reason: str | None) -> None:
        """Stop the turns of all children now; this token's own state stays as it is."""
        for child in self._children:
            child.request_immediate(reason=reason)

    # ── running tools ──

    def register_tool_start(self, tool_call_id: str, tool_name: str) -> None:
        """Note that a tool call is running."""
        self._tools[tool_call_id] = tool_name

    def register_tool_complete(self, tool_call_id: str) -> None:
        """Note that a tool call has ended; unknown ids are fine."""
        self._tools.pop(tool_call_id, None)

    @property
    def running_tools(self) -> set[str]:
        """Ids of the running tool calls."""
        return set(self._tools)

    @property
    def running_tool_names(self) -> list[str]:
        """Names of the running tools, one per call."""
        return list(self._tools.values())

    # ── callbacks ──

    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()``, sync or async, whenever the state changes."""
        if not callable(callback):
            raise TypeError(f"on_cancel needs a callable, got {callback!r}")
        self._callbacks = (*self._callbacks, callback)

    async def trigger_callbacks(self) -> None:
        """Run all callbacks in order, shielded and each under a deadline; failures are logged."""
        if self._callbacks:
            await run_section(self._run_callbacks, name="amplifier cancel callbacks", shield=True)

    async def _run_callbacks(self) -> None:
        for callback in self._callbacks:
            seconds = CALLBACK_SECONDS if self._budget is None else self._budget.half(CALLBACK_SECONDS)
            label = f"cancel callback {_name_of(callback)}"
            try:
                answer = call_foreign(callback)
                if inspect.isawaitable(answer):
                    await run_bounded(answer, seconds, label, self._watch)
            except DeadlinePassed as late:
                logger.warning("%s was cut off: %s", label, late)
            except Exception:  # a callback is foreign code
                logger.exception("%s failed", label)

    # ── the session's side ──

    def attach(
        self,
        loop: Loop,
        spawn: Spawn | None,
        announce: Callable[[], None] | None,
        budget: TimeBudget | None = None,
        watch: Watchdog | None = None,
    ) -> None:
        """The session opens on ``loop``: requests reach it from now on; callbacks share the ``budget`` of its closing."""
        self._loop, self._spawn, self._announce, self._budget, self._watch = loop, spawn, announce, budget, watch
        if self._claims:
            loop.soon(self._act)

    def detach(self) -> None:
        """The session is closed; the token keeps its state and reaches nothing."""
        self._loop = self._spawn = self._announce = self._budget = self._watch = None
        self._end_grace()

    def bind(self, scope: anyio.CancelScope) -> None:
        """A turn, or the opening, runs inside ``scope``; an immediate request cancels it."""
        self._scope = scope
        if self._claims:
            self._act()

    def unbind(self) -> None:
        """The turn, or the opening, is over."""
        self._scope = None
        self._end_grace()

    @property
    def has_requests(self) -> bool:
        """Whether there are requests that have not been announced."""
        return bool(self._requests)

    def take_requests(self) -> list[CancelRequest]:
        """Requests not announced yet, oldest first; they are handed out once."""
        taken = []
        while self._requests:
            taken.append(self._requests.pop(0))
        return taken

    def _act(self) -> None:
        """On the loop: carry out what was requested."""
        if self.is_immediate:
            if self._scope is not None:
                self._scope.cancel()
        elif self._grace is not None and self._scope is not None and self._stop_grace is None:
            self._stop_grace = start_timer(self._grace, self._grace_is_over, self._spawn)
        if self._announce is not None and self._requests:
            self._announce()

    def _grace_is_over(self) -> None:
        self._stop_grace = None
        self.request_immediate(reason=self._reason or "the grace of a graceful stop ran out")

    def _end_grace(self) -> None:
        if self._stop_grace is not None:
            self._stop_grace()
            self._stop_grace = None


def _name_of(callback: Callable[[], Any]) -> str:
    """Where a callback is defined; the token does not know which module registered it."""
    name = getattr(callback, "__qualname__", None)
    return f"{callback.__module__}.{name}" if name else repr(callback)
