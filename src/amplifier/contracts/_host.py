"""The parts of the host behind a module's coordinator: `Hooks`, `Cancellation` and `Session`.

Modules use these Protocols and never import the kernel, which implements them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from amplifier.models import HookResult

from ._hook import Handler, OnFailure

Cleanup: TypeAlias = Callable[[], Awaitable[Any] | None]
"""A function that releases resources: sync or async, callable more than once."""


class Inherited(Enum):
    """Marker for a parameter that is left out, where None already means no limit."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Final = Inherited.DEFAULT
"""Take the value from the plan."""


@runtime_checkable
class Hooks(Protocol):
    """The handlers of a session's events.

    Handlers run one after another, by priority and then in order of registration. Each has its own
    copy of the payload and a deadline. A handler registered for ``"*"`` receives every event.
    """

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
        """Add a handler.

        Args:
            event: Name of the event, or ``"*"``.
            handler: Called as ``handler(event, data)``.
            priority: A handler with a lower priority runs earlier.
            name: Name for logs and `unregister`. It need not be unique, and is generated if absent.
            timeout: Seconds per call. None means no limit. If left out, the ``hook`` deadline of
                the plan applies.
            on_failure: Effect of a failure or timeout. If left out, the module's setting in the
                plan applies, else "continue". "deny" makes the handler a gate: if it fails,
                overruns or returns None, the event is denied.
            fields: Top-level fields that the handler reads. If left out, it receives the whole
                payload. Otherwise it receives the listed fields that the event has, and the
                kernel's own. Its cost does not grow with the other fields. The data of a "modify"
                replaces fields and keeps the others.
            on_demand: True for a handler that needs no field for itself, only the fields that other
                handlers receive. `has_handlers` does not count it for a field.

        Returns:
            A callable that removes exactly this registration. It may be called more than once.
        """

    def on(
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
        """Add a handler, as `register` does."""

    async def emit(self, event: str, data: dict[str, Any]) -> HookResult:
        """Call the handlers and merge their verdicts.

        Verdicts take precedence in this order: deny, ask_user, inject_context, modify, continue.

        Args:
            event: Name of the event.
            data: The payload, which no handler can change. The kernel adds session_id, parent_id
                and timestamp.

        Returns:
            The merged verdict. Its ``data`` is the final payload for every action.
        """

    async def emit_and_collect(
        self,
        event: str,
        data: dict[str, Any],
        timeout: float = 1.0,
    ) -> list[dict[str, Any]]:
        """Call all handlers concurrently and return the data of their results, in handler order.

        Args:
            event: Name of the event.
            data: The payload.
            timeout: Seconds for all handlers together. A late result is left out.
        """

    def unregister(self, name: str) -> None:
        """Remove the newest registration of that name, if any."""

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Return the names of handlers by event, in running order."""

    def has_handlers(self, event: str, field: str | None = None) -> bool:
        """Return True if an event has a handler, or one that receives the given field.

        An emitter need not build a field that no handler receives.
        """

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts from.

        session_id, parent_id and timestamp cannot be set.
        """


@runtime_checkable
class Cancellation(Protocol):
    """The cancellation token of a session: none, then graceful, then immediate.

    Only `reset` returns to ``none``. Immediate cancels the turn, and loops check for graceful
    between steps. Requests may come from any thread and from signal handlers, and they reach child
    sessions.
    """

    @property
    def state(self) -> str:
        """The state: ``"none"``, ``"graceful"`` or ``"immediate"``."""

    @property
    def is_cancelled(self) -> bool:
        """True if a stop of either kind was requested."""

    @property
    def is_graceful(self) -> bool:
        """True if the state is graceful, and not immediate."""

    @property
    def is_immediate(self) -> bool:
        """True if the state is immediate."""

    @property
    def running_tools(self) -> set[str]:
        """Ids of the running tool calls."""

    @property
    def running_tool_names(self) -> list[str]:
        """Names of the running tools, one per call."""

    def request_graceful(self, grace: float | None = None, *, reason: str | None = None) -> bool:
        """Let running tools finish and start nothing new.

        Args:
            grace: Seconds until the stop turns immediate. None means never.
            reason: Reason for events and the error.

        Returns:
            True if this call changed the state.
        """

    def request_immediate(self, *, reason: str | None = None) -> bool:
        """Cancel the turn, and return True if this call changed the state."""

    def request_cancellation(self) -> None:
        """Request a graceful stop."""

    def reset(self) -> None:
        """Reset to ``none`` and forget running tools. Children and callbacks are kept."""

    def register_child(self, token: Any, /) -> None:
        """Pass the current state and every later one on to a child's token."""

    def unregister_child(self, token: Any, /) -> None:
        """Stop passing the state on to a child's token."""

    def register_tool_start(self, tool_call_id: str, tool_name: str, /) -> None:
        """Add a running tool call."""

    def register_tool_complete(self, tool_call_id: str, /) -> None:
        """Remove a tool call that is over. An unknown id is ignored."""

    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Call a sync or async function when a stop is requested."""

    async def trigger_callbacks(self) -> None:
        """Run the callbacks now. The kernel calls this on every request."""


@runtime_checkable
class Session(Protocol):
    """The modules' view of the session: its identity, its plan and its child sessions."""

    @property
    def session_id(self) -> str:
        """Id of the session."""

    @property
    def parent_id(self) -> str | None:
        """Id of the parent session, or None."""

    @property
    def config(self) -> dict[str, Any]:
        """The mount plan."""

    async def execute(self, prompt: str) -> str:
        """Run one turn. A second turn at the same time is refused immediately."""

    def fork(
        self,
        overlay: dict[str, Any] | None = None,
        *,
        session_id: str | None = None,
        inherit: bool = True,
    ) -> Session:
        """Return a child session, to be opened with ``async with``.

        Args:
            overlay: Plan that is deeply merged over the plan of this session.
            session_id: Id of the child. It is generated if absent.
            inherit: False makes the overlay the whole plan.
        """

    async def __aenter__(self) -> Session:
        """Mount the plan."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close the session and leave nothing behind."""
