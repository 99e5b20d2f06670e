"""The cancellation token of a session: none → graceful → immediate."""

from __future__ import annotations

import enum
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import final

import anyio
import attrs

from amplifier._internal.reading import check_timeout
from amplifier.contracts.cancellation import cancel_scope
from amplifier.events import CANCEL_REQUESTED

from .deadlines import DeadlinePassed, TimeBudget, call_foreign, run_bounded
from .loop import Loop, Spawn, start_timer
from .watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.cancellation")

CALLBACK_SECONDS = 5.0
"""Deadline of one cancel callback. It runs while a caller waits for the session to stop."""

Emit = Callable[[str, dict[str, object]], Awaitable[object]]


class CancellationState(enum.Enum):
    """How urgently a turn is asked to stop."""

    NONE = "none"
    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"


@attrs.frozen
class CancelRequest:
    """A request that changed the state. The session announces it as ``cancel:requested``.

    Attributes:
        state: The new state.
        grace: Seconds until a graceful request turns immediate. None if it stays graceful.
        reason: The reason that the caller gave, or None.
    """

    state: CancellationState
    grace: float | None = None
    reason: str | None = None


# The token may be used from any thread and from a signal handler. So it takes no lock, since a
# signal handler that interrupts the lock's holder would wait indefinitely. It reaches the event
# loop only through `Loop.soon`. Everything that needs the loop happens in `_apply_requests`.


@final
class CancellationToken:
    """Asks the turns of one session, and of its children, to stop.

    A graceful request lets running tools finish and starts nothing new. An immediate request
    cancels the turn's scope.

    Attributes:
        asked_at: The time of the latest request by the monotonic clock. None if there was no
            request.
    """

    def __init__(self) -> None:
        self._claims: dict[CancellationState, object] = {}
        self._children: tuple[CancellationToken, ...] = ()
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._tools: dict[str, str] = {}
        self._requests: list[CancelRequest] = []
        self._scope: anyio.CancelScope | None = None
        self._loop: Loop | None = None
        self._spawn: Spawn | None = None
        self._notify: Callable[[], None] | None = None
        self._budget: TimeBudget | None = None
        self._watch: Watchdog | None = None
        self._announcing: anyio.Event | None = None
        self._stop_grace: Callable[[], None] | None = None
        self._reason: str | None = None
        self._grace: float | None = None
        self.asked_at: float | None = None

    def __repr__(self) -> str:
        bound = ", bound to a turn" if self._scope is not None else ""
        tools, children = len(self._tools), len(self._children)
        state = f"{self.state}, {tools} tools running, {children} children{bound}"
        return f"<CancellationToken {state}>"

    # ── state ──

    @property
    def state(self) -> str:
        """``"none"``, ``"graceful"`` or ``"immediate"``."""
        if CancellationState.IMMEDIATE in self._claims:
            return "immediate"
        return "graceful" if self._claims else "none"

    @property
    def is_cancelled(self) -> bool:
        """True after any request."""
        return bool(self._claims)

    @property
    def is_graceful(self) -> bool:
        """True if the state is graceful, not immediate."""
        return bool(self._claims) and CancellationState.IMMEDIATE not in self._claims

    @property
    def is_immediate(self) -> bool:
        """True if the state is immediate."""
        return bool(self._claims) and CancellationState.IMMEDIATE in self._claims

    @property
    def reason(self) -> str | None:
        """The reason of the latest request, or None."""
        return self._reason

    def request_graceful(self, grace: float | None = None, *, reason: str | None = None) -> bool:
        """Ask the turn to stop once its running tools have finished.

        Args:
            grace: Seconds after which the request turns immediate. If None, it stays graceful.
            reason: Shown in events and errors.

        Returns:
            True if this call changed the state.

        Raises:
            TypeError: ``grace`` isn't a number.
            ValueError: ``grace`` isn't positive and finite.
        """
        check_timeout(grace)
        if self._claims:
            return False
        changed = self._claim(CancelRequest(CancellationState.GRACEFUL, grace, reason))
        for child in self._children:
            child.request_graceful(grace, reason=reason)
        return changed

    def request_immediate(self, *, reason: str | None = None) -> bool:
        """Cancel the running turn, its tools and its child sessions.

        Returns:
            True if this call changed the state.
        """
        if self.is_immediate:
            return False
        changed = self._claim(CancelRequest(CancellationState.IMMEDIATE, None, reason))
        self.stop_children(reason)
        return changed

    def request_cancellation(self) -> None:
        """Call `request_graceful`. Older callers use this name."""
        self.request_graceful()

    def reset(self) -> None:
        """Return to the state "none". Forget running tools, and keep children and callbacks."""
        self._claims = {}
        self._requests.clear()
        self._tools.clear()
        self._reason = self._grace = self.asked_at = None
        # Another thread must not touch the timer.
        if self._loop is None or self._loop.is_running_here():
            self._end_grace()
        else:
            self._loop.soon(self._end_grace)

    def _claim(self, request: CancelRequest) -> bool:
        mine = object()
        # dict.setdefault() is atomic, so one thread wins without a lock.
        if self._claims.setdefault(request.state, mine) is not mine:
            return False
        self._reason, self._grace, self.asked_at = request.reason, request.grace, time.monotonic()
        self._requests.append(request)
        if self._loop is not None:
            self._loop.soon(self._apply_requests)
        return True

    # ── children ──

    def register_child(self, child: CancellationToken) -> None:
        """Pass every request on to ``child``, including the current one."""
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
        """Stop the turns of all children. The state of this token stays as it is."""
        for child in self._children:
            child.request_immediate(reason=reason)

    # ── running tools ──

    def register_tool_start(self, tool_call_id: str, tool_name: str) -> None:
        """Record that a tool call is running."""
        self._tools[tool_call_id] = tool_name

    def register_tool_complete(self, tool_call_id: str) -> None:
        """Record that a tool call has ended. Unknown ids are ignored."""
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

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call ``callback()``, sync or async, whenever the state changes."""
        if not callable(callback):
            raise TypeError(f"on_cancel needs a callable, got {callback!r}")
        self._callbacks = (*self._callbacks, callback)

    async def trigger_callbacks(self) -> None:
        """Run all callbacks in order, shielded, each under a deadline. Failures are logged."""
        if self._callbacks:
            with cancel_scope(shield=True):
                for callback in self._callbacks:
                    await self._run_callback(callback)

    async def _run_callback(self, callback: Callable[[], object]) -> None:
        seconds = CALLBACK_SECONDS
        if self._budget is not None:
            seconds = self._budget.half(CALLBACK_SECONDS)
        label = f"cancel callback {_name_of(callback)}"
        try:
            answer = call_foreign(callback)
            if inspect.isawaitable(answer):
                await run_bounded(answer, seconds, label, self._watch)
        except DeadlinePassed as late:
            logger.warning("%s was cancelled: %s", label, late)
        except Exception:  # a callback is foreign code
            logger.exception("%s failed", label)

    async def announce_requests(self, emit: Emit) -> None:
        """Emit ``cancel:requested`` for each new request and run the callbacks.

        Several tasks may call this at once. They announce one after another, so each request is
        announced once, and every caller returns after its announcement.
        """
        while self._announcing is not None:
            await self._announcing.wait()
        if not self._requests:
            return
        done = self._announcing = anyio.Event()
        try:
            for request in self._drain_requests():
                details: dict[str, object] = {
                    "state": request.state.value,
                    "grace": request.grace,
                    "reason": request.reason,
                    "running_tools": self.running_tool_names,
                }
                await emit(CANCEL_REQUESTED, details)
                await self.trigger_callbacks()
        finally:
            self._announcing = None
            done.set()

    @property
    def has_requests(self) -> bool:
        """True if a request hasn't been announced, or is being announced."""
        return bool(self._requests) or self._announcing is not None

    def _drain_requests(self) -> list[CancelRequest]:
        drained = []
        while self._requests:
            drained.append(self._requests.pop(0))
        return drained

    # ── the session's side ──

    def attach(
        self,
        loop: Loop,
        spawn: Spawn | None,
        notify: Callable[[], None] | None,
        budget: TimeBudget | None = None,
        watch: Watchdog | None = None,
    ) -> None:
        """Connect the token to a session that opens on the event loop ``loop``.

        Args:
            loop: The event loop of the session.
            spawn: Starts the task of a timer. Only trio needs it.
            notify: Called on the loop after a request, so that the session announces it.
            budget: The time budget of the session's closing, which callbacks share.
            watch: Reports callbacks that don't react to their cancellation.
        """
        self._loop, self._spawn, self._notify = loop, spawn, notify
        self._budget, self._watch = budget, watch
        if self._claims:
            loop.soon(self._apply_requests)

    def detach(self) -> None:
        """Disconnect the token from a closed session. The state stays as it is."""
        self._loop = self._spawn = self._notify = self._budget = self._watch = None
        self._end_grace()

    def bind(self, scope: anyio.CancelScope) -> None:
        """Cancel ``scope``, in which a turn or the opening runs, on an immediate request."""
        self._scope = scope
        if self._claims:
            self._apply_requests()

    def unbind(self) -> None:
        """Forget the scope of a turn, or of the opening, that has ended."""
        self._scope = None
        self._end_grace()

    def _apply_requests(self) -> None:
        """Cancel the scope or start the grace period, and have the request announced."""
        if self.is_immediate:
            if self._scope is not None:
                self._scope.cancel()
        elif self._grace is not None and self._scope is not None and self._stop_grace is None:
            self._stop_grace = start_timer(self._grace, self._grace_is_over, self._spawn)
        if self._notify is not None and self._requests:
            self._notify()

    def _grace_is_over(self) -> None:
        self._stop_grace = None
        self.request_immediate(reason=self._reason or "the grace of a graceful stop ran out")

    def _end_grace(self) -> None:
        if self._stop_grace is not None:
            self._stop_grace()
            self._stop_grace = None


def _name_of(callback: Callable[[], object]) -> str:
    """Return where a callback is defined, since the token doesn't record who registered it."""
    name = getattr(callback, "__qualname__", None)
    return f"{callback.__module__}.{name}" if name else repr(callback)
