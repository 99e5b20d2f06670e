"""The hook registry: who is registered for what, in which order.

Registration and ordering live here, the call loop in `dispatch`, the merging of results in `merge`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol, final

import attrs

from amplifier._json import LEAVES, copy_json
from amplifier.contracts import DEFAULT, Inherited, OnFailure
from amplifier.contracts._calls import parent_call_id
from amplifier.errors import HookRecursionError
from amplifier.events import CATALOGUE, HOOK_FAILED, HOOK_TIMEOUT, TERMINAL_EVENTS
from amplifier.models import HookResult

from ..runtime.deadlines import DeadlinePassed, TimeBudget, check_timeout
from ..runtime.sections import run_section
from ..runtime.timestamp import timestamp
from ..runtime.watchdog import Watchdog
from .dispatch import Dispatch, Failure, Registration, collect, look_at_replaced_code, text_of
from .event_names import warn_if_misspelt

EVERY_EVENT = "*"

TERMINAL_SECONDS = 5.0
"""How long the handlers of a terminal event may take together: they run while a caller waits for the session to stop."""

DEEPEST = 32
"""How deep dispatches may be nested."""


class _Link:
    """One running dispatch and those it is nested in.

    Tasks that a handler starts inherit the link; once its dispatch is over, what they emit is nested in nothing.
    """

    __slots__ = ("depth", "event", "is_over", "outer")

    depth: int
    outer: _Link | None
    is_over: bool

    def __init__(self, event: str, outer: _Link | None) -> None:
        while outer is not None and outer.is_over:
            outer = outer.outer
        self.event = event
        self.outer = outer
        self.depth = 1 if outer is None else outer.depth + 1
        self.is_over = False

    def events(self) -> tuple[str, ...]:
        """The chain of events, outermost first."""
        return (*(() if self.outer is None else self.outer.events()), self.event)


_innermost: ContextVar[_Link | None] = ContextVar("amplifier_innermost_dispatch", default=None)


class Ledger(Protocol):
    """Where a session lists what modules have registered."""

    def enter(self, key: Registration, entry: Registration) -> None:
        """A module has registered a handler."""

    def strike(self, key: Registration) -> None:
        """It is gone."""


@attrs.frozen
class HookStatistics:
    """A registry at one moment."""

    handlers: int
    events: int


@final
class HookRegistry:
    """Handlers of one session by event.

    Order is (priority, registration); lower priorities run first.
    """

    SESSION_START: ClassVar[str] = "session:start"
    SESSION_END: ClassVar[str] = "session:end"
    PROMPT_SUBMIT: ClassVar[str] = "prompt:submit"
    TOOL_PRE: ClassVar[str] = "tool:pre"
    TOOL_POST: ClassVar[str] = "tool:post"
    CONTEXT_PRE_COMPACT: ClassVar[str] = "context:pre_compact"
    ORCHESTRATOR_COMPLETE: ClassVar[str] = "orchestrator:complete"
    USER_NOTIFICATION: ClassVar[str] = "user:notification"

    _lists_empty_events: ClassVar[bool] = False
    """Keep an event whose last handler is gone. Event names are open-ended, so they would pile up."""

    def __init__(self) -> None:
        self._handlers: dict[str, list[Registration]] = {}
        self._ready: dict[str, tuple[Registration, ...]] = {}
        self._everywhere: tuple[Registration, ...] = ()
        self._sequence = itertools.count()
        self._defaults: dict[str, Any] = {}
        self._defaults_are_nested = False
        self._identity: dict[str, Any] = {}
        self._child_id: str | None = None
        self._default_timeout: float | None = 300.0
        self._watch: Watchdog | None = None
        self._budget: TimeBudget | None = None
        self._ledger: Ledger | None = None

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<HookRegistry {now.handlers} handlers for {now.events} events>"

    def statistics(self) -> HookStatistics:
        """How many handlers are registered, for how many events."""
        counts = [len(handlers) for handlers in self._handlers.values() if handlers]  # the alias keeps empty ones
        return HookStatistics(handlers=sum(counts), events=len(counts))

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
    ) -> Callable[[], None]:
        """Add a handler for an event, or for all of them (``"*"``).

        Args:
            event: The event's name.
            handler: ``handler(event, data)``, async or sync; sync ones run in place and must not block.
            priority: Lower runs earlier.
            name: For logs and `unregister`; names need not be unique.
            timeout: Seconds for one call; None for no limit.
            on_failure: ``"deny"`` makes the handler a gate: if it fails, overruns or returns None, the event is denied.
            fields: The top-level fields of the payload that the handler reads; it receives those and the kernel's own, so a
                large payload is not copied for it. What it returns as ``modify`` replaces fields and leaves the others. None
                for all that its code can read.

        Returns:
            A function that removes exactly this registration; calling it again does nothing.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The timeout is not a positive number, or ``on_failure`` is unknown.
        """
        return self.register_as(
            None, event, handler, priority, name, timeout=timeout, on_failure=on_failure, fields=fields
        )

    def on(
        self,
        event: str,
        handler: Callable[[str, Any], Any],
        priority: int = 0,
        name: str | None = None,
        *,
        timeout: float | Inherited | None = DEFAULT,
        on_failure: OnFailure | None = None,
        fields: Collection[str] | None = None,
    ) -> Callable[[], None]:
        """Add a handler; the same as `register`."""
        return self.register_as(
            None, event, handler, priority, name, timeout=timeout, on_failure=on_failure, fields=fields
        )

    def register_as(
        self,
        module: str | None,
        event: str,
        handler: Callable[[str, Any], Any],
        priority: int = 0,
        name: str | None = None,
        *,
        timeout: float | Inherited | None = DEFAULT,
        on_failure: OnFailure | None = None,
        fields: Collection[str] | None = None,
    ) -> Callable[[], None]:
        """Add a handler on behalf of a module; see `register`."""
        _check_registration(event, handler, priority, name, on_failure, fields)
        if event not in CATALOGUE and event != EVERY_EVENT:
            self._look_at_unknown(event)
        seq = next(self._sequence)
        ledger = None if module is None else self._ledger
        registration = Registration(
            event,
            handler,
            priority,
            seq,
            name if name is not None else f"_auto_{event}_{seq}",
            self._default_timeout if timeout is DEFAULT else check_timeout(timeout),
            on_failure or "continue",
            module,
            None if ledger is None else self,
            fields,
        )
        bisect.insort(self._handlers.setdefault(event, []), registration, key=_order)
        self._forget_ready(event)
        if ledger is not None:
            ledger.enter(registration, registration)

        def unregister() -> None:
            self.remove(registration)

        return unregister

    def _look_at_unknown(self, event: str) -> None:
        """Events may have any name; one that is nearly the catalogue's is warned about."""
        warn_if_misspelt(event)

    def unregister(self, name: str) -> None:
        """Remove the newest registration made under ``name``; nothing happens if there is none.

        Raises:
            TypeError: ``name`` is not a str.
        """
        self.unregister_as(None, name)

    def unregister_as(self, module: str | None, name: str) -> None:
        """Remove the newest registration of that name, for a module only among its own."""
        if not isinstance(name, str):
            raise TypeError(f"unregister takes the name a handler was registered under, a str; got {name!r}")
        candidates = [
            r
            for handlers in self._handlers.values()
            for r in handlers
            if r.name == name and (module is None or r.module == module)
        ]
        if candidates:
            self.remove(max(candidates, key=lambda r: r.seq))

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Names of handlers by event, in running order; an asked-for event is always there."""
        if event is not None:
            if not isinstance(event, str):
                raise TypeError(f"list_handlers takes an event's name or None; got {event!r}")
            return {event: [r.name for r in self._handlers.get(event, ())]}
        return {name: [r.name for r in handlers] for name, handlers in self._handlers.items()}

    def has_handlers(self, event: str, field: str | None = None) -> bool:
        """Whether some handler would be called for an event; with a field, whether one would receive that field.

        An emitter need not build what no handler receives.
        """
        if not self._handlers:
            return False
        handlers = self._ready.get(event) or self._ready_for(event)
        if field is None:
            return bool(handlers)
        look_at_replaced_code(handlers)
        return any(r.fields is None or field in r.fields for r in handlers)

    def registrations_of(self, module: str) -> list[Registration]:
        """What one module has registered and not removed."""
        return [r for handlers in self._handlers.values() for r in handlers if r.module == module]

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts with."""
        self._defaults = fields
        self._defaults_are_nested = any(type(value) not in LEAVES for value in fields.values())

    def _fresh_defaults(self) -> dict[str, Any]:
        return copy_json(self._defaults) if self._defaults_are_nested else self._defaults

    def belong_to(
        self,
        session_id: str,
        parent_id: str | None,
        watch: Watchdog | None,
        ledger: Ledger | None = None,
        budget: TimeBudget | None = None,
    ) -> None:
        """Stamp every event with the session's identity, which no payload can override; list modules' handlers; share its clock."""
        self._identity = {"session_id": session_id, "parent_id": parent_id}
        self._child_id = None if parent_id is None else session_id
        self._watch = watch
        self._ledger = ledger
        self._budget = budget

    def set_default_timeout(self, seconds: float | None) -> None:
        """The deadline of handlers registered from now on without one of their own."""
        self._default_timeout = seconds

    def remove(self, registration: Registration) -> None:
        """Remove one registration; nothing happens if it was removed before."""
        if not registration.live:
            return
        registration.live = False
        event = registration.event
        handlers = self._handlers[event]
        handlers.remove(registration)
        if not handlers and not self._lists_empty_events:
            del self._handlers[event]
        self._forget_ready(event)
        if registration.registry is not None:
            registration.registry = None
            if self._ledger is not None:
                self._ledger.strike(registration)

    def _forget_ready(self, event: str) -> None:
        if event == EVERY_EVENT:
            self._ready.clear()
            self._everywhere = tuple(self._handlers.get(EVERY_EVENT, ()))
        else:
            self._ready.pop(event, None)

    def _ready_for(self, event: str) -> tuple[Registration, ...]:
        """The handlers of an event in running order, those for every event among them."""
        handlers = self._handlers.get(event)
        if not handlers or event == EVERY_EVENT:
            return self._everywhere  # not kept by event: names are open-ended
        ready = self._ready[event] = tuple(sorted([*handlers, *self._everywhere], key=_order))
        return ready

    # ── events ──

    async def emit(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """Call every handler of ``event`` and merge their results; ``result.data`` is the final payload.

        Without handlers it is the given data as it is: nobody sees it, so nothing is added to it.

        Adds no checkpoint of its own. Terminal events are delivered even while the emitter is being cancelled.

        Raises:
            TypeError: The event is not a str or the data not a mapping.
            HookRecursionError: Handlers emit events in a circle.
            ModelError: What a handler reads of the payload is circular or too deep; handlers before it have been called.
        """
        given = _payload(event, data)
        handlers = self._ready.get(event) or self._ready_for(event)
        if not handlers:
            return HookResult(action="continue", data=given)
        look_at_replaced_code(handlers)
        if event not in TERMINAL_EVENTS:
            return await self._dispatch(event, given, handlers, False)
        if all(registration.never_waits for registration in handlers):  # nothing can cut them off
            return await self._dispatch(event, given, handlers, True)
        return await run_section(
            self._dispatch, event, given, handlers, True, name=f"amplifier event {event}", shield=True
        )

    async def _dispatch(
        self, event: str, given: dict[str, Any], handlers: tuple[Registration, ...], is_terminal: bool
    ) -> HookResult:
        """Run the handlers, then report those that failed to observers, each dispatch within its own limit."""
        owned = {"timestamp": timestamp(), **self._identity}
        if self._child_id is not None:
            _add_parent_call(owned, self._child_id)
        limit = TERMINAL_SECONDS if is_terminal else None
        if self._budget is not None and self._budget.until != math.inf:  # the session is closing
            limit = self._budget.half(TERMINAL_SECONDS)
        dispatch = Dispatch(event, {**self._fresh_defaults(), **given, **owned}, owned, self._watch, limit)
        link = _begin(event)
        token = _innermost.set(link)
        try:
            result = await dispatch.run(handlers)
        finally:
            link.is_over = True
            _innermost.reset(token)
            # Their tracebacks lead to the dispatch; one that keeps them would be a reference cycle.
            failures, dispatch.failures = dispatch.failures, None
        if failures is not None:
            try:
                if is_terminal:
                    await run_section(
                        self._report, event, failures, True, name=f"amplifier failures of {event}", shield=True
                    )
                else:
                    await self._report(event, failures, False)
            finally:
                failures.clear()  # from Python 3.12 on, frames in a traceback keep those that called them, this one too
        return result

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
        payload = {**self._fresh_defaults(), **_payload(event, data), "timestamp": timestamp(), **self._identity}
        if self._child_id is not None:
            _add_parent_call(payload, self._child_id)
        handlers = self._ready.get(event) or self._ready_for(event)
        if not handlers:
            return []
        look_at_replaced_code(handlers)
        link = _begin(event)
        token = _innermost.set(link)
        try:
            return await collect(event, payload, handlers, checked, self._watch)
        finally:
            link.is_over = True
            _innermost.reset(token)

    async def _report(self, event: str, failures: list[Failure], is_terminal: bool) -> None:
        """Report to observers which handlers failed; failures of those observers are only logged."""
        if event.startswith("hook:"):
            return
        for failure in failures:
            registration, error = failure.registration, failure.error
            name = HOOK_TIMEOUT if isinstance(error, DeadlinePassed) else HOOK_FAILED
            if observers := self._ready.get(name) or self._ready_for(name):
                details: dict[str, Any] = {
                    "module_id": registration.module,
                    "hook_name": registration.name,
                    "event": event,
                    "on_failure": registration.on_failure,
                }
                if isinstance(error, DeadlinePassed):
                    details["seconds"] = error.seconds
                    details["awaiting"] = error.where
                else:
                    details.update(error=text_of(error), error_type=type(error).__name__)
                await self._dispatch(name, details, observers, is_terminal)


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


def _add_parent_call(owned: dict[str, Any], session_id: str) -> None:
    """Add the id of the call inside which a child session runs, if it does."""
    if (call_id := parent_call_id(session_id)) is not None:
        owned["parent_call_id"] = call_id


def _begin(event: str) -> _Link:
    """A link for a dispatch that begins.

    Raises:
        HookRecursionError: It would be nested too deep.
    """
    link = _Link(event, _innermost.get())
    if link.depth > DEEPEST:
        chain = link.events()
        raise HookRecursionError(
            f"handlers emit events inside each other more than {DEEPEST} deep (… {' → '.join(chain[-7:])}); "
            "a handler must not emit an event that leads back to itself",
            chain=chain,
        )
    return link
