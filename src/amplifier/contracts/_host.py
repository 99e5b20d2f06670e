"""The parts of the host that a module uses through its coordinator: `Hooks`, `Cancellation` and `Session`.

Modules are written against these Protocols, so that they never import the kernel; the kernel implements them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from amplifier.models import HookResult

from ._hook import Handler, OnFailure

Cleanup: TypeAlias = Callable[[], Awaitable[Any] | None]
"""Ends something; sync or async, callable more than once."""


class Inherited(Enum):
    """Marks a parameter that was left out, where None already means something: no limit."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Final = Inherited.DEFAULT
"""Take the value from the plan."""


@runtime_checkable
class Hooks(Protocol):
    """Who listens to what; every session has its own.

    Handlers run one after another, by priority and then in order of registration, each on a copy of the payload, each
    under a deadline. A handler registered for ``"*"`` hears every event.
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
            event: The event's name, or ``"*"``.
            handler: Called as ``handler(event, data)``.
            priority: Lower runs earlier.
            name: For logs and `unregister`; made up if absent, and need not be unique.
            timeout: Seconds per call; None for no limit; left out, the plan's ``hook`` deadline.
            on_failure: What a failure or timeout means; left out, the module's setting in the plan, else "continue". "deny"
                makes the handler a gate: if it fails, overruns or returns None, the event is denied.
            fields: The top-level fields that the handler reads; left out, the whole payload. It receives those that the event
                has, and the kernel's own. Its cost does not grow with the rest. The data of a "modify" replaces fields and
                leaves the others as they are.
            on_demand: It needs no field for itself, only what other handlers receive: `has_handlers` does not count it for a field.

        Returns:
            A callable that removes exactly this registration, once or more.
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
        """Add a handler; the same as `register`."""

    async def emit(self, event: str, data: dict[str, Any]) -> HookResult:
        """Call the handlers and merge their verdicts; deny over ask_user over inject_context over modify over continue.

        Args:
            event: The event's name.
            data: The payload, which no handler can change; the kernel adds session_id, parent_id and timestamp.

        Returns:
            The merged verdict; its ``data`` is the final payload, whatever the action.
        """

    async def emit_and_collect(
        self,
        event: str,
        data: dict[str, Any],
        timeout: float = 1.0,
    ) -> list[dict[str, Any]]:
        """Call all handlers concurrently and return the data of their results, in handler order.

        Args:
            event: The event's name.
            data: The payload.
            timeout: Seconds for all of them together; who is late is left out.
        """

    def unregister(self, name: str) -> None:
        """Remove the newest registration of that name; nothing happens if there is none."""

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Return the names of handlers by event, in running order."""

    def has_handlers(self, event: str, field: str | None = None) -> bool:
        """Whether some handler would be called for an event; with a field, whether one would receive that field of the payload.

        An emitter need not build what no handler receives.
        """

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts from; session_id, parent_id and timestamp cannot be set."""


@runtime_checkable
class Cancellation(Protocol):
    """The session's stop button: none, then graceful, then immediate, and back only by `reset`.

    Immediate cancels the turn. Graceful is for loops to honour between steps. Requests may come from any thread and
    from signal handlers, and reach child sessions.
    """

    @property
    def state(self) -> str:
        """``"none"``, ``"graceful"`` or ``"immediate"``."""

    @property
    def is_cancelled(self) -> bool:
        """Whether a stop of either kind was requested."""

    @property
    def is_graceful(self) -> bool:
        """Whether the state is exactly graceful."""

    @property
    def is_immediate(self) -> bool:
        """Whether the state is immediate."""

    @property
    def running_tools(self) -> set[str]:
        """The ids of the tool calls under way."""

    @property
    def running_tool_names(self) -> list[str]:
        """The names of the tools under way, one per call."""

    def request_graceful(self, grace: float | None = None, *, reason: str | None = None) -> bool:
        """Let running tools finish and start nothing new.

        Args:
            grace: Seconds after which it turns immediate; None for never.
            reason: For events and the error.

        Returns:
            Whether this call changed the state.
        """

    def request_immediate(self, *, reason: str | None = None) -> bool:
        """Cancel the turn; returns whether this call changed the state."""

    def request_cancellation(self) -> None:
        """Request a graceful stop."""

    def reset(self) -> None:
        """Go back to none and forget running tools; children and callbacks stay."""

    def register_child(self, token: Any, /) -> None:
        """Pass the state on to a child's token, now and from now on."""

    def unregister_child(self, token: Any, /) -> None:
        """Stop passing the state on to a child's token."""

    def register_tool_start(self, tool_call_id: str, tool_name: str, /) -> None:
        """Note that a tool call is under way."""

    def register_tool_complete(self, tool_call_id: str, /) -> None:
        """Note that a tool call is over; an unknown id is fine."""

    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Call back, sync or async, when a stop is requested."""

    async def trigger_callbacks(self) -> None:
        """Run the callbacks now; the kernel does so by itself."""


@runtime_checkable
class Session(Protocol):
    """The session, as far as modules use it: to know who they work for and to open children."""

    @property
    def session_id(self) -> str:
        """The session's id."""

    @property
    def parent_id(self) -> str | None:
        """The parent's id, for a child."""

    @property
    def config(self) -> dict[str, Any]:
        """The mount plan."""

    async def execute(self, prompt: str) -> str:
        """Run one turn; refused at once while another is running."""

    def fork(
        self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None, inherit: bool = True
    ) -> Session:
        """Make a child that is not opened yet: open it with ``async with``.

        Args:
            overlay: Merged deeply over this session's plan.
            session_id: The child's id; generated if absent.
            inherit: Whether it has this session's plan under the overlay; otherwise the overlay is the whole plan.
        """

    async def __aenter__(self) -> Session:
        """Mount the plan."""

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close; nothing of the session remains."""
