"""The host as a module sees it: `Coordinator`, `Hooks`, `Cancellation` and `Session`.

Modules are written against these Protocols, so that they never import the kernel; the kernel implements them.

On Python 3.12 and later `isinstance` does not see attributes that arrive through ``__getattr__``. A proxy that
passes calls on to a real coordinator may be a good host and still fail that check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from amplifier.models import HookResult

from ._approval import ApprovalSystem
from ._display import DisplaySystem
from ._hook import Handler, OnFailure

MountPoint: TypeAlias = Literal["orchestrator", "context", "providers", "tools", "hooks", "module-source-resolver"]
"""Where things are mounted: providers and tools by name, of the others there is one each, hooks are built in.

``mount("session", x, name="orchestrator")`` (or ``"context"``) is understood as the mount point of that name.
"""

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

        Returns:
            A callable that removes exactly this registration, once or more.
        """
        ...

    def on(
        self,
        event: str,
        handler: Handler,
        priority: int = 0,
        name: str | None = None,
        *,
        timeout: float | Inherited | None = DEFAULT,
        on_failure: OnFailure | None = None,
    ) -> Callable[[], None]:
        """Add a handler; the same as `register`."""
        ...

    async def emit(self, event: str, data: dict[str, Any]) -> HookResult:
        """Call the handlers and merge their verdicts; deny over ask_user over inject_context over modify over continue.

        Args:
            event: The event's name.
            data: The payload, which no handler can change; the kernel adds session_id, parent_id and timestamp.

        Returns:
            The merged verdict; its ``data`` is the final payload, whatever the action.
        """
        ...

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
        ...

    def unregister(self, name: str) -> None:
        """Remove the newest registration of that name; nothing happens if there is none."""
        ...

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Return the names of handlers by event, in running order."""
        ...

    def set_default_fields(self, **fields: Any) -> None:
        """Replace the fields that every payload starts from; session_id, parent_id and timestamp cannot be set."""
        ...


@runtime_checkable
class Cancellation(Protocol):
    """The session's stop button: none, then graceful, then immediate, and back only by `reset`.

    Immediate cancels the turn. Graceful is for loops to honour between steps. Requests may come from any thread and
    from signal handlers, and reach child sessions.
    """

    @property
    def state(self) -> str:
        """``"none"``, ``"graceful"`` or ``"immediate"``."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether a stop of either kind was requested."""
        ...

    @property
    def is_graceful(self) -> bool:
        """Whether the state is exactly graceful."""
        ...

    @property
    def is_immediate(self) -> bool:
        """Whether the state is immediate."""
        ...

    @property
    def running_tools(self) -> set[str]:
        """The ids of the tool calls under way."""
        ...

    @property
    def running_tool_names(self) -> list[str]:
        """The names of the tools under way, one per call."""
        ...

    def request_graceful(self, grace: float | None = None, *, reason: str | None = None) -> bool:
        """Let running tools finish and start nothing new.

        Args:
            grace: Seconds after which it turns immediate; None for never.
            reason: For events and the error.

        Returns:
            Whether this call changed the state.
        """
        ...

    def request_immediate(self, *, reason: str | None = None) -> bool:
        """Cancel the turn; returns whether this call changed the state."""
        ...

    def request_cancellation(self) -> None:
        """Request a graceful stop."""
        ...

    def reset(self) -> None:
        """Go back to none and forget running tools; children and callbacks stay."""
        ...

    def register_child(self, token: Any) -> None:
        """Pass the state on to a child's token, now and from now on."""
        ...

    def unregister_child(self, token: Any) -> None:
        """Stop passing the state on to a child's token."""
        ...

    def register_tool_start(self, tool_call_id: str, tool_name: str, /) -> None:
        """Note that a tool call is under way."""
        ...

    def register_tool_complete(self, tool_call_id: str, /) -> None:
        """Note that a tool call is over; an unknown id is fine."""
        ...

    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Call back, sync or async, when a stop is requested."""
        ...

    async def trigger_callbacks(self) -> None:
        """Run the callbacks now; the kernel does so by itself."""
        ...


@runtime_checkable
class Session(Protocol):
    """The session, as far as modules use it: to know who they work for and to open children."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        ...

    @property
    def parent_id(self) -> str | None:
        """The parent's id, for a child."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """The mount plan."""
        ...

    async def execute(self, prompt: str) -> str:
        """Run one turn; refused at once while another is running."""
        ...

    def fork(self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None) -> Session:
        """Make a child that is not opened yet: open it with ``async with``.

        Args:
            overlay: Merged deeply over this session's plan.
            session_id: The child's id; generated if absent.
        """
        ...

    async def __aenter__(self) -> Session:
        """Mount the plan."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close; nothing of the session remains."""
        ...


@runtime_checkable
class Coordinator(Protocol):
    """Everything the host offers to a module.

    Each module gets a view of its own, so that the kernel knows who registered what and can undo it. Once a module was
    undone, because its mount failed, or the session is closed, registering through its view raises
    `amplifier.errors.SessionStateError`; only a cleanup is still taken from an undone module. Modules may set
    attributes of their own here; every module of the session sees them.
    """

    approval_system: ApprovalSystem | None
    """Who is asked when a hook asks; without one every question is denied."""

    display_system: DisplaySystem | None
    """Where messages to the user are shown; without one they are logged."""

    @property
    def session(self) -> Session:
        """The session this coordinator belongs to."""
        ...

    @property
    def session_id(self) -> str:
        """The session's id."""
        ...

    @property
    def parent_id(self) -> str | None:
        """The parent session's id, for a child."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """The whole mount plan; a module's own part is what `mount` got as its second argument."""
        ...

    @property
    def loader(self) -> Any:
        """The module loader."""
        ...

    @property
    def session_state(self) -> dict[str, Any]:
        """A dict for modules to share; the kernel never looks at it."""
        ...

    @property
    def hooks(self) -> Hooks:
        """Where events are emitted and handlers registered."""
        ...

    @property
    def mount_points(self) -> dict[str, Any]:
        """What is mounted where, live; prefer `get`."""
        ...

    @property
    def cancellation(self) -> Cancellation:
        """The session's stop button."""
        ...

    @property
    def channels(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Who contributes to which channel: ``name`` and ``callback``."""
        ...

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning; None for no limit."""
        ...

    @property
    def injection_size_limit(self) -> int | None:
        """Characters that one injection may have; None for no limit."""
        ...

    def mount(self, mount_point: str, module: Any, /, name: str | None = None) -> Awaitable[None]:
        """Put a module in its place; this happens at the call, awaiting is optional.

        Args:
            mount_point: A `MountPoint`.
            module: What to mount.
            name: For providers and tools; left out, the module's own ``name``.

        Raises:
            ValueError: There is no such mount point, or a name is needed.
        """
        ...

    def unmount(self, mount_point: str, /, name: str | None = None) -> Awaitable[None]:
        """Take a module out of its place; this happens at the call, awaiting is optional. Cleanups do not run.

        Raises:
            ValueError: There is no such mount point, or a name is needed.
        """
        ...

    def get(self, mount_point: str, /, name: str | None = None) -> Any:
        """Return what is mounted: one module or None, or for providers and tools without a name the live dict.

        Raises:
            ValueError: There is no such mount point.
        """
        ...

    def get_mounted(self, mount_point: str, /) -> Any:
        """Return everything at a mount point; the same as `get` without a name."""
        ...

    def register_cleanup(self, fn: Cleanup, /) -> None:
        """Have something called on closing; what was registered last is called first."""
        ...

    def register_capability(self, name: str, value: Any) -> None:
        """Offer something to other modules under a dotted name."""
        ...

    def get_capability(self, name: str) -> Any:
        """Return what is offered under a name, or None."""
        ...

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Contribute to a channel; the callback, sync or async, is called whenever the channel is collected."""
        ...

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return what the channel's contributors return, in order; None and failures are left out."""
        ...

    async def process_hook_result(self, result: HookResult, event: str, hook_name: str = "unknown") -> HookResult:
        """Do what a verdict asks for: store injections, ask for approval, show messages.

        Args:
            result: What `Hooks.emit` returned.
            event: The event it was about.
            hook_name: The hook to name where the result itself names none.

        Returns:
            What is left to do: ``deny``, ``modify``, ``continue``, or ``inject_context`` with the ephemeral injections.

        Raises:
            ValueError: An injection is longer than `injection_size_limit`; none was stored.
        """
        ...

    async def cleanup(self) -> None:
        """Run the registered cleanups; closing the session does so by itself."""
        ...

    def reset_turn(self) -> None:
        """Start counting injections anew."""
        ...

    def request_cancel(self, immediate: bool = False) -> Any:
        """Request a stop through `cancellation`; this happens at the call."""
        ...

    def start_soon(
        self, fn: Callable[..., Awaitable[Any]], /, *args: Any, name: str | None = None, fatal: bool = False
    ) -> None:
        """Run background work that ends with the session, which must have been opened with ``async with``.

        Args:
            fn: An async function.
            args: Its arguments.
            name: For reports.
            fatal: Whether a crash ends the session; otherwise it is reported and ends only this task.
        """
        ...

    async def host(
        self, context_manager: AbstractAsyncContextManager[Any], /, *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Keep an async context manager open in a task of its own, so that it may hold task groups and cancel scopes.

        Args:
            context_manager: Entered before this returns, left on closing.
            name: For reports.

        Returns:
            A callable that leaves it earlier.
        """
        ...

    async def run_section(
        self, fn: Callable[..., Awaitable[Any]], /, *args: Any, name: str | None = None, shield: bool = False
    ) -> Any:
        """Run work in a child task so that its unwinding is not cut off; for orchestrators that run calls in tasks of their own.

        On asyncio a second ``Task.cancel()`` and the end of the event loop go through every shield. Inside of a section the first
        cancellation arrives as usual, and later ones wait until the work has unwound.

        Args:
            fn: What to run, in the caller's context variables.
            args: Its arguments.
            name: For reports.
            shield: Hold the first cancellation back as well, until the work is done; it must bound itself.

        Returns:
            What it returned. What it raises is raised here.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """Describe what is mounted, by names."""
        ...
