"""Register the handlers of one session, order them, and emit events to them."""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Protocol, Self, final

import attrs

from amplifier._internal.json import JSON, copy_json
from amplifier._internal.reading import check_timeout
from amplifier._internal.spelling import warn_of_misspelt_event
from amplifier.contracts import DEFAULT, Handler, Inherited, OnFailure
from amplifier.contracts.calls import parent_call_id
from amplifier.contracts.cancellation import cancel_scope
from amplifier.errors import HookRecursionError
from amplifier.events import (
    CATALOGUE,
    CONTENT_BLOCK_RESET,
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
from amplifier.models.turns import RecordedEvent

from ..runtime.deadlines import DeadlinePassed, TimeBudget, failure_text
from ..runtime.loop import timestamp
from ..runtime.owner import Owner, belongs_to
from ..runtime.watchdog import Watchdog
from .dispatch import Dispatch, Registration, collect
from .merge import continued

EVERY_EVENT = "*"

TERMINAL_SECONDS = 5.0
"""Seconds for all handlers of a terminal event together.

They run while a caller waits for the session to stop.
"""

MAX_DEPTH = 32
"""Maximum number of dispatches inside each other."""

NEVER_HIDDEN = frozenset({CONTENT_BLOCK_RESET})
"""Events that reach the reader of a stream although a hook denies them.

They retract text that the reader has received. Without them it would show a repeated answer twice.
"""

RECORDED = frozenset(
    {
        CONTEXT_COMPACTION,
        EXECUTION_END,
        PROMPT_SUBMIT,
        PROVIDER_RESPONSE,
        TOOL_ERROR,
        TOOL_POST,
        TOOL_PRE,
    }
)
"""Events that are kept for ``session.last_turn``, with or without handlers."""

_KERNEL_FIELDS = ("timestamp", "session_id", "parent_id", "parent_call_id")
"""Fields that every handler receives."""


class TakeEvent(Protocol):
    """A function that puts an event into the stream of a turn."""

    def __call__(
        self, event: str, payload: dict[str, JSON], /, *, may_wait: bool
    ) -> Awaitable[None] | None:
        """Accept the final payload of an event.

        If the buffer is full, return an awaitable for room.
        """


@attrs.frozen(eq=False)
class _Stream:
    """The stream of the running turn: the names of its events and fields, or None for all."""

    take: TakeEvent
    stop_waiting: Callable[[], None]
    events: frozenset[str] | None
    fields: tuple[str, ...] | None

    def reads(self, event: str, field: str | None = None) -> bool:
        if self.events is not None and event not in self.events:
            return False
        return field is None or self.fields is None or field in self.fields


@attrs.frozen
class HookStatistics:
    """Numbers of a registry at one moment.

    Attributes:
        handlers: The number of registered handlers.
        events: The number of events that have a handler.
    """

    handlers: int
    events: int


# The application's registry has no owner. A module's registry differs from it only in the owner:
# they share one ``__dict__``, so a module sees every handler, and a handler registered through its
# registry belongs to the module.


@final
class HookRegistry:
    """The handlers of one session by event.

    Handlers with a lower priority run first, and handlers of one priority in the order of
    registration.
    """

    __slots__ = ("__dict__", "__weakref__", "_owner")

    _owner: Owner | None

    def __init__(self) -> None:
        self._owner = None
        self._handlers: dict[str, list[Registration]] = {}
        self._ready: dict[str, tuple[Registration, ...]] = {}
        self._sequence = itertools.count()
        self._defaults: dict[str, JSON] = {}
        self._identity: dict[str, JSON] = {}
        self._child_id: str | None = None
        self._default_timeout: float | None = 300.0
        self._watch: Watchdog | None = None
        self._budget: TimeBudget | None = None
        self._recorded: list[RecordedEvent] | None = None
        self._stream: _Stream | None = None

    def view_for(self, owner: Owner, kind: type[Self] | None = None) -> Self:
        """Return the registry for a module, of this class or of the subclass ``kind``."""
        view = object.__new__(kind or type(self))
        view.__dict__ = self.__dict__
        view._owner = owner
        return view

    def belong_to(
        self,
        session_id: str,
        parent_id: str | None,
        watch: Watchdog | None,
        budget: TimeBudget | None = None,
    ) -> None:
        """Stamp every event with the session's identity, which no payload can override.

        Args:
            session_id: The id of the session.
            parent_id: The id of its parent, or None.
            watch: Reports handlers that don't react to their cancellation.
            budget: The time budget of the session's closing, which handlers share.
        """
        self._identity = {"session_id": session_id, "parent_id": parent_id}
        self._child_id = None if parent_id is None else session_id
        self._watch = watch
        self._budget = budget

    def __repr__(self) -> str:
        now = self.statistics()
        module = "" if self._owner is None else f", for module {self._owner.name!r}"
        return f"<HookRegistry {now.handlers} handlers for {now.events} events{module}>"

    def statistics(self) -> HookStatistics:
        """Return the current number of handlers and events."""
        handlers = sum(map(len, self._handlers.values()))
        return HookStatistics(handlers=handlers, events=len(self._handlers))

    # ── registration ──

    def register(
        self,
        event: str,
        handler: Handler,
        priority: int = 0,
        name: str | None = None,
        *,
        timeout: float | Inherited | None = DEFAULT,
        on_failure: OnFailure | None = None,
        fields: Collection[str] | None = None,
        on_demand: bool = False,
    ) -> Callable[[], None]:
        """Add a handler, as `amplifier.contracts.Hooks.register` describes.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The timeout isn't a positive number, or ``on_failure`` is unknown.
            SessionStateError: The module was undone, or the session is closed.
        """
        _check_registration(event, handler, priority, name, on_failure, fields)
        owner = self._owner
        if owner is not None:
            owner.check("a handler")
        warn_of_misspelt_event(event, "amplifier.kernel.")
        seq = next(self._sequence)
        seconds = self._default_timeout if timeout is DEFAULT else check_timeout(timeout)
        received: tuple[str, ...] | None = None
        if fields is not None:
            # Plain text, because a subclass of str may compare in its own way.
            received = tuple(dict.fromkeys((*map(str.__str__, fields), *_KERNEL_FIELDS)))
        registration = Registration(
            event=event,
            handler=handler,
            priority=priority,
            seq=seq,
            name=name if name is not None else f"_auto_{event}_{seq}",
            seconds=math.inf if seconds is None else seconds,
            on_failure=on_failure or ("continue" if owner is None else owner.on_failure),
            owner=owner,
            fields=received,
            on_demand=on_demand,
        )
        bisect.insort(self._handlers.setdefault(event, []), registration, key=_order)
        self._forget_ready(event)
        return partial(self.remove, registration)

    on = register

    def unregister(self, name: str) -> None:
        """Remove the newest registration of that name, if any. A module removes only its own.

        Raises:
            TypeError: ``name`` isn't a str.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"unregister takes the name a handler was registered under, a str; got {name!r}"
            )
        module = None if self._owner is None else self._owner.name
        matches = [
            registration
            for handlers in self._handlers.values()
            for registration in handlers
            if registration.name == name and module in (None, registration.module)
        ]
        if matches:
            self.remove(max(matches, key=lambda registration: registration.seq))

    def remove(self, registration: Registration) -> None:
        """Remove one registration. Idempotent."""
        registration.live = False
        event = registration.event
        handlers = self._handlers.get(event, [])
        index = bisect.bisect_left(handlers, _order(registration), key=_order)
        # Registrations compare by identity.
        if handlers[index : index + 1] == [registration]:
            del handlers[index]
        # Event names are open-ended, so empty lists would pile up.
        if not handlers:
            self._handlers.pop(event, None)
        self._forget_ready(event)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the handlers of a module, or of all modules."""
        for registration in reversed(self.registrations_of(module)):
            self.remove(registration)

    def _forget_ready(self, event: str) -> None:
        if event == EVERY_EVENT:
            self._ready.clear()
        else:
            self._ready.pop(event, None)

    def _ready_for(self, event: str) -> tuple[Registration, ...]:
        """Return the handlers that receive an event, in running order."""
        everywhere = self._handlers.get(EVERY_EVENT, ())
        handlers = self._handlers.get(event, ())
        ready = tuple(everywhere)
        if event != EVERY_EVENT:
            ready = tuple(sorted([*handlers, *everywhere], key=_order))
        # Only names in the catalogue are cached, because others are open-ended and would pile up.
        if handlers or event in CATALOGUE:
            self._ready[event] = ready
        return ready

    # ── inspection ──

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Return the names of handlers by event, in running order.

        Args:
            event: An event, which is in the result even without handlers. None lists all events
                that have handlers.
        """
        if event is not None:
            if not isinstance(event, str):
                raise TypeError(f"list_handlers takes an event's name or None; got {event!r}")
            return {event: [handler.name for handler in self._handlers.get(event, ())]}
        return {
            name: [handler.name for handler in handlers]
            for name, handlers in self._handlers.items()
        }

    def has_handlers(self, event: str, field: str | None = None) -> bool:
        """Return whether an event has a handler, or one that receives the given field.

        An emitter need not build a field that no handler receives. An event that is kept for
        ``session.last_turn`` is kept whole. The stream of a turn counts as a handler.
        """
        is_kept_whole = self._recorded is not None and event in RECORDED
        stream = self._stream
        if stream is not None and stream.reads(event, None if is_kept_whole else field):
            return True
        handlers = self._ready.get(event) or self._ready_for(event)
        if field is None or is_kept_whole:
            return bool(handlers)
        return any(
            not handler.on_demand and (handler.fields is None or field in handler.fields)
            for handler in handlers
        )

    def registrations_of(self, module: str | None) -> list[Registration]:
        """Return the current registrations of a module, or of all modules."""
        return [
            registration
            for handlers in self._handlers.values()
            for registration in handlers
            if belongs_to(registration.owner, module)
        ]

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts with."""
        self._defaults = fields

    def set_default_timeout(self, seconds: float | None) -> None:
        """Set the deadline of handlers that are registered later without one."""
        self._default_timeout = seconds

    # ── events ──

    async def emit(self, event: str, data: Mapping[str, JSON] | None = None) -> HookResult:
        """Call every handler of ``event`` and merge their results.

        This adds no checkpoint. Terminal events are delivered even while the emitter is being
        cancelled.

        Returns:
            The merged result. Its ``data`` is the final payload. Without handlers it is ``data`` as
            it was passed, without the kernel's fields.

        Raises:
            TypeError: The event isn't a str, or the data isn't a mapping.
            HookRecursionError: Handlers emit events in a circle.
            ModelError: The part of the payload that a handler receives is circular or too deep.
                Earlier handlers have been called.
        """
        payload = _payload(event, data)
        handlers = self._ready.get(event)
        if handlers is None:
            handlers = self._ready_for(event)
        if not handlers:
            result = continued(dict(payload))
        elif event not in TERMINAL_EVENTS:
            result = await self._dispatch(event, payload, handlers, False)
        else:
            with cancel_scope(shield=True):
                result = await self._dispatch(event, payload, handlers, True)
        if self._recorded is not None and event in RECORDED:
            was_denied = result.action == "deny"
            self._recorded.append((event, time.monotonic(), result.data or {}, was_denied))
        if self._stream is not None and self._stream.reads(event):
            is_denied = result.action == "deny"
            if is_denied and event not in NEVER_HIDDEN:
                return result
            is_closing = self._budget is not None and self._budget.until != math.inf
            # Terminal events have a deadline of seconds, and must always be emitted.
            may_wait = event not in TERMINAL_EVENTS and not is_closing and not _is_inside_terminal()
            final = self._payload_for(
                self._stream,
                payload if is_denied else result.data or {},
                is_stamped=bool(handlers) and not is_denied,
            )
            full = self._stream.take(event, final, may_wait=may_wait)
            if full is not None:
                await full
        return result

    def record_into(self, events: list[RecordedEvent] | None) -> None:
        """Append the events of a turn to this list from now on. None stops the recording.

        Each is recorded with its name, time, payload, and whether it was denied.
        """
        self._recorded = events

    # The reader of a stream isn't a handler. It can't change, deny or delay a payload. So an event
    # that has no handlers needs no dispatch, and no timestamp unless the reader requests that
    # field.

    def stream_into(
        self,
        take: TakeEvent | None,
        stop_waiting: Callable[[], None] = lambda: None,
        *,
        events: frozenset[str] | None = None,
        fields: tuple[str, ...] | None = None,
    ) -> None:
        """Hand the final payload of every event that isn't denied to the stream of a turn.

        Args:
            take: Receives its own copy of each payload, after all handlers. None ends the stream.
            stop_waiting: Wakes emitters that wait for room.
            events: The names of the events to read. None for all.
            fields: The names of the fields to read. None for all.
        """
        self._stream = None if take is None else _Stream(take, stop_waiting, events, fields)

    def stop_waiting(self) -> None:
        """Wake emitters that wait for a reader, because the session closes."""
        if self._stream is not None:
            self._stream.stop_waiting()

    def _payload_for(
        self, stream: _Stream, data: dict[str, JSON], *, is_stamped: bool
    ) -> dict[str, JSON]:
        if not is_stamped and self._defaults:
            data = {**self._defaults, **data}
        if stream.fields is not None:
            return {field: copy_json(data[field]) for field in stream.fields if field in data}
        copied: dict[str, JSON] = copy_json(data)
        return copied if is_stamped else {**copied, **self._owned_fields()}

    async def _dispatch(
        self,
        event: str,
        data: dict[str, JSON],
        handlers: tuple[Registration, ...],
        is_terminal: bool,
    ) -> HookResult:
        """Run the handlers, then report failed ones to observers.

        The limit applies to each of the two.
        """
        owned = self._owned_fields()
        limit = TERMINAL_SECONDS if is_terminal else None
        # The budget has a limit while the session is closing.
        if self._budget is not None and self._budget.until != math.inf:
            limit = self._budget.half(TERMINAL_SECONDS)
        payload = {**data, **owned}
        if self._defaults:
            payload = {**copy_json(self._defaults), **payload}
        dispatch = Dispatch(event, payload, owned, self._watch, limit)
        return await self._run(dispatch, handlers, is_terminal)

    async def _run(
        self, dispatch: Dispatch, handlers: tuple[Registration, ...], is_terminal: bool
    ) -> HookResult:
        try:
            with Nesting(dispatch.event):
                result = await dispatch.run(handlers)
        finally:
            # The tracebacks of the failures lead to the dispatch, so keeping the failures in it
            # would be a reference cycle.
            failures, dispatch.failures = dispatch.failures, []
        try:
            # Failures of observers are only logged. No local variable may keep an error, for the
            # same reason.
            while failures and not dispatch.event.startswith("hook:"):
                await self._report(dispatch.event, *failures.pop(0), is_terminal)
        finally:
            # From Python 3.12 on, a frame in a traceback keeps its callers, which include this
            # frame.
            failures.clear()
        return result

    async def _report(
        self, event: str, registration: Registration, error: Exception, is_terminal: bool
    ) -> None:
        """Report to observers that a handler failed."""
        details: dict[str, JSON] = {
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
        self, event: str, data: Mapping[str, JSON] | None = None, timeout: float = 1.0
    ) -> list[dict[str, JSON]]:
        """Call all handlers of ``event`` at once.

        Handlers that fail, or give no answer within ``timeout`` seconds, are logged and left out.

        Returns:
            The data of their results, in the order of the handlers.

        Raises:
            ValueError: The timeout isn't a positive number.
        """
        seconds = check_timeout(timeout)
        if seconds is None:
            raise ValueError("emit_and_collect needs a timeout in seconds, not None")
        payload = {
            **copy_json(self._defaults),
            **_payload(event, data),
            **self._owned_fields(),
        }
        if self._stream is not None and self._stream.reads(event):
            final = self._payload_for(self._stream, payload, is_stamped=True)
            self._stream.take(event, final, may_wait=False)
        handlers = self._ready.get(event) or self._ready_for(event)
        if not handlers:
            return []
        with Nesting(event):
            return await collect(event, payload, handlers, seconds, self._watch)

    def _owned_fields(self) -> dict[str, JSON]:
        """Return the fields of a payload that no handler can change."""
        owned: dict[str, JSON] = {"timestamp": timestamp(), **self._identity}
        # A child session runs inside a call of its parent.
        if self._child_id is not None and (call_id := parent_call_id(self._child_id)) is not None:
            owned["parent_call_id"] = call_id
        return owned


class Nesting:
    """A context manager around one dispatch, linked to the dispatch it is nested in.

    Tasks that a handler starts inherit it. Once the dispatch is over, events that they emit
    aren't nested in it.

    Attributes:
        event: The name of the event.
        outer: The dispatch around it, or None.
        depth: The number of nested dispatches, including this one.
        is_over: True once the dispatch has ended.

    Raises:
        HookRecursionError: The dispatch would be nested too deeply.
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
                f"handlers emit events inside each other more than {MAX_DEPTH} deep "
                f"(… {' → '.join(chain[-7:])}); "
                "a handler must not emit an event that leads back to itself",
                chain=chain,
            )

    def __enter__(self) -> None:
        self._token = _innermost.set(self)

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        _innermost.reset(self._token)

    def events(self) -> tuple[str, ...]:
        """Return the chain of events, outermost first."""
        return (*(() if self.outer is None else self.outer.events()), self.event)


_innermost: ContextVar[Nesting | None] = ContextVar("amplifier_innermost_dispatch", default=None)


def _is_inside_terminal() -> bool:
    """Return whether this code runs inside a handler of a terminal event."""
    nesting = _innermost.get()
    while nesting is not None:
        if nesting.event in TERMINAL_EVENTS and not nesting.is_over:
            return True
        nesting = nesting.outer
    return False


def _order(registration: Registration) -> tuple[int, int]:
    return registration.priority, registration.seq


def _payload(event: object, data: object) -> dict[str, JSON]:
    if type(data) is dict and type(event) is str:
        return data
    if not isinstance(event, str):
        raise TypeError(f"an event's name must be a str such as 'tool:pre', got {event!r}")
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(
        f"the data of {event!r} must be a dict (or None), got {type(data).__name__}: {data!r:.80}"
    )


def _check_registration(
    event: object,
    handler: object,
    priority: object,
    name: object,
    on_failure: object,
    fields: object,
) -> None:
    if not isinstance(event, str) or not event:
        rule = "a handler is registered for an event's name, a non-empty str"
        raise TypeError(f"{rule}; got {event!r}")
    if not callable(handler):
        rule = f"the handler for {event!r} must be callable as handler(event, data)"
        raise TypeError(f"{rule}; got {handler!r}")
    if isinstance(priority, bool) or not isinstance(priority, int):
        rule = f"the priority of a handler for {event!r} must be an int (lower runs earlier)"
        raise TypeError(f"{rule}; got {priority!r}")
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
            f"the fields of a handler for {event!r} must be names such as ('tool_name', "
            f"'tool_call_id'), or None for the whole payload; got {fields!r:.80}"
        )
