"""The hook registry: who is registered for what, in which order.

Registration and ordering live here, the call loop in `dispatch`, the merging of results in `merge`.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Self, final

import attrs

from amplifier._json import copy_json
from amplifier._spelling import warn_of_misspelt_event
from amplifier.contracts import DEFAULT, Inherited, OnFailure
from amplifier.contracts._calls import parent_call_id
from amplifier.contracts._cancellation import cancel_scope
from amplifier.errors import HookRecursionError
from amplifier.events import (
    CATALOGUE,
    CONTEXT_COMPACTION,
    EXECUTION_END,
    HOOK_FAILED,
    HOOK_TIMEOUT,
    PROMPT_SUBMIT,
    PROVIDER_RESPONSE,
    TERMINAL_EVENTS,
    TOOL_ERROR,
    TOOL_POST,
    TOOL_PRE,
)
from amplifier.models import HookResult
from amplifier.turns import RecordedEvent

from ..runtime.deadlines import DeadlinePassed, TimeBudget, check_timeout, failure_text
from ..runtime.loop import timestamp
from ..runtime.owner import Owner, belongs_to
from ..runtime.watchdog import Watchdog
from .dispatch import Dispatch, Registration, collect
from .merge import continued

EVERY_EVENT = "*"

TERMINAL_SECONDS = 5.0
"""How long the handlers of a terminal event may take together: they run while a caller waits for the session to stop."""

MAX_DEPTH = 32
"""How deep dispatches may be nested."""

RECORDED = frozenset(
    {CONTEXT_COMPACTION, EXECUTION_END, PROMPT_SUBMIT, PROVIDER_RESPONSE, TOOL_ERROR, TOOL_POST, TOOL_PRE}
)
"""Events that are kept for ``session.last_turn``, whoever else receives them."""

_KERNEL_FIELDS = ("timestamp", "session_id", "parent_id", "parent_call_id")
"""Fields that a handler receives whatever it asked for."""


@attrs.frozen
class HookStatistics:
    """A registry at one moment."""

    handlers: int
    events: int


@final
class HookRegistry:
    """Handlers of one session by event.

    Order is (priority, registration); lower priorities run first. The application's registry has no owner. A module's is the
    same with its owner: all share one ``__dict__``, and what is registered through it belongs to the module.
    """

    __slots__ = ("__dict__", "__weakref__", "_owner")

    _owner: Owner | None

    def __init__(self) -> None:
        self._owner = None
        self._handlers: dict[str, list[Registration]] = {}
        self._ready: dict[str, tuple[Registration, ...]] = {}
        self._sequence = itertools.count()
        self._defaults: dict[str, Any] = {}
        self._identity: dict[str, Any] = {}
        self._child_id: str | None = None
        self._default_timeout: float | None = 300.0
        self._watch: Watchdog | None = None
        self._budget: TimeBudget | None = None
        self._recorded: list[RecordedEvent] | None = None

    def view_for(self, owner: Owner, kind: type[Self] | None = None) -> Self:
        """The registry that a module gets, of this class or of a subclass."""
        view = object.__new__(kind or type(self))
        view.__dict__ = self.__dict__
        view._owner = owner
        return view

    def belong_to(
        self, session_id: str, parent_id: str | None, watch: Watchdog | None, budget: TimeBudget | None = None
    ) -> None:
        """Stamp every event with the session's identity, which no payload can override; share its clock."""
        self._identity = {"session_id": session_id, "parent_id": parent_id}
        self._child_id = None if parent_id is None else session_id
        self._watch = watch
        self._budget = budget

    def __repr__(self) -> str:
        now = self.statistics()
        module = "" if self._owner is None else f", for module {self._owner.name!r}"
        return f"<HookRegistry {now.handlers} handlers for {now.events} events{module}>"

    def statistics(self) -> HookStatistics:
        """How many handlers are registered, for how many events."""
        return HookStatistics(handlers=sum(map(len, self._handlers.values())), events=len(self._handlers))

    # ── registration ──

    def register(
        self,
        event: str,
        handler: Callable[[str, Any], Any],
        priority: int = 0,
        name: str | None = None,
        *,
        timeout: float | Inherited | None = DEFAULT,
        on_failure: OnFailure | None = None,
        fields: Collection[str] | None = None,
        on_demand: bool = False,
    ) -> Callable[[], None]:
        """Add a handler; see `amplifier.contracts.Hooks.register`.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The timeout is not a positive number, or ``on_failure`` is unknown.
            SessionStateError: The module was undone, or the session is closed.
        """
        _check_registration(event, handler, priority, name, on_failure, fields)
        owner = self._owner
        if owner is not None:
            owner.check("a handler")
        warn_of_misspelt_event(event, "amplifier.kernel.")
        seq = next(self._sequence)
        seconds = self._default_timeout if timeout is DEFAULT else check_timeout(timeout)
        registration = Registration(
            event=event,
            handler=handler,
            priority=priority,
            seq=seq,
            name=name if name is not None else f"_auto_{event}_{seq}",
            seconds=math.inf if seconds is None else seconds,
            on_failure=on_failure or ("continue" if owner is None else owner.on_failure),
            owner=owner,
            fields=None if fields is None else tuple(dict.fromkeys((*map(str.__str__, fields), *_KERNEL_FIELDS))),
            on_demand=on_demand,
        )
        bisect.insort(self._handlers.setdefault(event, []), registration, key=_order)
        self._forget_ready(event)
        return partial(self.remove, registration)

    on = register

    def unregister(self, name: str) -> None:
        """Remove the newest registration made under ``name``, for a module only among its own; nothing happens if there is none.

        Raises:
            TypeError: ``name`` is not a str.
        """
        if not isinstance(name, str):
            raise TypeError(f"unregister takes the name a handler was registered under, a str; got {name!r}")
        module = None if self._owner is None else self._owner.name
        found = [
            r for handlers in self._handlers.values() for r in handlers if r.name == name and module in (None, r.module)
        ]
        if found:
            self.remove(max(found, key=lambda r: r.seq))

    def remove(self, registration: Registration) -> None:
        """Remove one registration; nothing happens if it was removed before."""
        registration.live = False
        event = registration.event
        handlers = self._handlers.get(event, [])
        at = bisect.bisect_left(handlers, _order(registration), key=_order)
        if handlers[at : at + 1] == [registration]:  # by identity: registrations have no other equality
            del handlers[at]
        if not handlers:  # event names are open-ended, and would pile up
            self._handlers.pop(event, None)
        self._forget_ready(event)

    def unregister_owner(self, module: str | None) -> None:
        """Remove what a module has registered, or all modules have."""
        for registration in reversed(self.registrations_of(module)):
            self.remove(registration)

    def _forget_ready(self, event: str) -> None:
        if event == EVERY_EVENT:
            self._ready.clear()
        else:
            self._ready.pop(event, None)

    def _ready_for(self, event: str) -> tuple[Registration, ...]:
        """The handlers of an event in running order, those for every event among them."""
        everywhere = self._handlers.get(EVERY_EVENT, ())
        handlers = self._handlers.get(event, ())
        ready = tuple(sorted([*handlers, *everywhere], key=_order)) if event != EVERY_EVENT else tuple(everywhere)
        if handlers or event in CATALOGUE:  # others are not kept: names are open-ended
            self._ready[event] = ready
        return ready

    # ── what is known ──

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Names of handlers by event, in running order; an asked-for event is always there."""
        if event is not None:
            if not isinstance(event, str):
                raise TypeError(f"list_handlers takes an event's name or None; got {event!r}")
            return {event: [r.name for r in self._handlers.get(event, ())]}
        return {name: [r.name for r in handlers] for name, handlers in self._handlers.items()}

    def has_handlers(self, event: str, field: str | None = None) -> bool:
        """Whether some handler would be called for an event; with a field, whether one would receive that field.

        An emitter need not build what no handler receives. An event that is kept for ``session.last_turn`` is kept whole.
        """
        handlers = self._ready.get(event) or self._ready_for(event)
        if field is None or (self._recorded is not None and event in RECORDED):
            return bool(handlers)
        return any(not r.on_demand and (r.fields is None or field in r.fields) for r in handlers)

    def registrations_of(self, module: str | None) -> list[Registration]:
        """What a module has registered and not removed; with None, what all modules have."""
        return [r for handlers in self._handlers.values() for r in handlers if belongs_to(r.owner, module)]

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts with."""
        self._defaults = fields

    def set_default_timeout(self, seconds: float | None) -> None:
        """The deadline of handlers registered from now on without one of their own."""
        self._default_timeout = seconds

    # ── events ──

    async def emit(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """Call every handler of ``event`` and merge their results; ``result.data`` is the final payload.

        Without handlers it is the given data as it is: no handler sees it, so nothing is added to it.

        Adds no checkpoint of its own. Terminal events are delivered even while the emitter is being cancelled.

        Raises:
            TypeError: The event is not a str or the data not a mapping.
            HookRecursionError: Handlers emit events in a circle.
            ModelError: What a handler receives of the payload is circular or too deep; handlers before it have been called.
        """
        given = _payload(event, data)
        handlers = self._ready.get(event)
        if handlers is None:
            handlers = self._ready_for(event)
        if not handlers:
            result = continued(dict(given))
        elif event not in TERMINAL_EVENTS:
            result = await self._dispatch(event, given, handlers, False)
        else:
            with cancel_scope(shield=True):
                result = await self._dispatch(event, given, handlers, True)
        if self._recorded is not None and event in RECORDED:
            self._recorded.append((event, time.monotonic(), result.data or {}, result.action == "deny"))
        return result

    def record_into(self, events: list[RecordedEvent] | None) -> None:
        """Add the events of a turn to this list from now on: name, time, payload, whether it was denied; None to stop."""
        self._recorded = events

    async def _dispatch(
        self, event: str, given: dict[str, Any], handlers: tuple[Registration, ...], is_terminal: bool
    ) -> HookResult:
        """Run the handlers, then report those that failed to observers, each dispatch within its own limit."""
        owned = self._owned_fields()
        limit = TERMINAL_SECONDS if is_terminal else None
        if self._budget is not None and self._budget.until != math.inf:  # the session is closing
            limit = self._budget.half(TERMINAL_SECONDS)
        payload = {**copy_json(self._defaults), **given, **owned}
        return await self._run(Dispatch(event, payload, owned, self._watch, limit), handlers, is_terminal)

    async def _run(self, dispatch: Dispatch, handlers: tuple[Registration, ...], is_terminal: bool) -> HookResult:
        try:
            with Nesting(dispatch.event):
                result = await dispatch.run(handlers)
        finally:
            # Their tracebacks lead to the dispatch; one that keeps them would be a reference cycle.
            failures, dispatch.failures = dispatch.failures, []
        try:
            while failures and not dispatch.event.startswith("hook:"):  # failures of observers are only logged
                await self._report(dispatch.event, *failures.pop(0), is_terminal)  # no name here may keep an error
        finally:
            failures.clear()  # from Python 3.12 on, frames in a traceback keep those that called them, this one too
        return result

    async def _report(self, event: str, registration: Registration, error: Exception, is_terminal: bool) -> None:
        """Report to observers that a handler failed."""
        details: dict[str, Any] = {
            "module_id": registration.module,
            "hook_name": registration.name,
            "event": event,
            "on_failure": registration.on_failure,
        }
        name = HOOK_FAILED
        if isinstance(error, DeadlinePassed):
            name = HOOK_TIMEOUT
            details.update(seconds=error.seconds, awaiting=error.where)
        else:
            details.update(error=failure_text(error), error_type=type(error).__name__)
        if observers := self._ready.get(name) or self._ready_for(name):
            await self._dispatch(name, details, observers, is_terminal)

    async def emit_and_collect(
        self, event: str, data: Mapping[str, Any] | None = None, timeout: float = 1.0
    ) -> list[dict[str, Any]]:
        """Ask all handlers of ``event`` at once and return the data of their results, in handler order.

        Handlers that fail, or give no answer within ``timeout`` seconds, are logged and left out.

        Raises:
            ValueError: The timeout is not a positive number.
        """
        checked = check_timeout(timeout)
        if checked is None:
            raise ValueError("emit_and_collect needs a timeout in seconds, not None")
        payload = {**copy_json(self._defaults), **_payload(event, data), **self._owned_fields()}
        handlers = self._ready.get(event) or self._ready_for(event)
        if not handlers:
            return []
        with Nesting(event):
            return await collect(event, payload, handlers, checked, self._watch)

    def _owned_fields(self) -> dict[str, Any]:
        """The fields of a payload that belong to the kernel; in a child, also the call inside which it runs."""
        owned = {"timestamp": timestamp(), **self._identity}
        if self._child_id is not None and (call_id := parent_call_id(self._child_id)) is not None:
            owned["parent_call_id"] = call_id
        return owned


class Nesting:
    """One running dispatch and those it is nested in; a context manager around it.

    Tasks that a handler starts inherit the link; once its dispatch is over, what they emit is nested in nothing.

    Raises:
        HookRecursionError: It would be nested too deep.
    """

    __slots__ = ("_token", "depth", "event", "is_over", "outer")

    _token: Token[Nesting | None]
    depth: int
    event: str
    is_over: bool
    outer: Nesting | None

    def __init__(self, event: str) -> None:
        outer = _innermost.get()
        while outer is not None and outer.is_over:
            outer = outer.outer
        self.event = event
        self.outer = outer
        self.depth = 1 if outer is None else outer.depth + 1
        self.is_over = False
        if self.depth > MAX_DEPTH:
            chain = self.events()
            raise HookRecursionError(
                f"handlers emit events inside each other more than {MAX_DEPTH} deep (… {' → '.join(chain[-7:])}); "
                "a handler must not emit an event that leads back to itself",
                chain=chain,
            )

    def __enter__(self) -> None:
        self._token = _innermost.set(self)

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        _innermost.reset(self._token)

    def events(self) -> tuple[str, ...]:
        """The chain of events, outermost first."""
        return (*(() if self.outer is None else self.outer.events()), self.event)


_innermost: ContextVar[Nesting | None] = ContextVar("amplifier_innermost_dispatch", default=None)


def _order(registration: Registration) -> tuple[int, int]:
    return registration.priority, registration.seq


def _payload(event: str, data: Any) -> dict[str, Any]:
    if type(data) is dict and type(event) is str:
        return data
    if not isinstance(event, str):
        raise TypeError(f"an event's name must be a str such as 'tool:pre', got {event!r}")
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(f"the data of {event!r} must be a dict (or None), got {type(data).__name__}: {data!r:.80}")


def _check_registration(event: Any, handler: Any, priority: Any, name: Any, on_failure: Any, fields: Any) -> None:
    if not isinstance(event, str) or not event:
        raise TypeError(f"a handler is registered for an event's name, a non-empty str; got {event!r}")
    if not callable(handler):
        raise TypeError(f"the handler for {event!r} must be callable as handler(event, data); got {handler!r}")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(
            f"the priority of a handler for {event!r} must be an int (lower runs earlier); got {priority!r}"
        )
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a handler for {event!r} must be a str or None; got {name!r}")
    if on_failure not in (None, "continue", "deny"):
        raise ValueError(f"on_failure must be 'continue' or 'deny'; got {on_failure!r}")
    if fields is not None and (
        isinstance(fields, str | bytes)
        or not isinstance(fields, Collection)
        or not all(isinstance(field, str) for field in fields)
    ):
        raise TypeError(
            f"the fields of a handler for {event!r} must be names such as ('tool_name', 'tool_call_id'), or None for the whole "
            f"payload; got {fields!r:.80}"
        )
