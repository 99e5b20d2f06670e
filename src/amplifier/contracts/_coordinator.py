"""The coordinator: everything the host offers to a module.

`Coordinator` is the Protocol that a module's ``mount`` receives. Modules are written against it, so that they never import the
kernel; the kernel implements it. `Coordinator.get` and `Coordinator.mount` have one typed signature for each mount point.

On Python 3.12 and later `isinstance` does not see attributes that arrive through ``__getattr__``. A proxy that
passes calls on to a real coordinator may be a good host and still fail that check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

from amplifier.models import HookResult

from ._approval import ApprovalSystem, DisplaySystem
from ._calls import Step, StepWrapper
from ._context import ContextManager
from ._host import Cancellation, Cleanup, Hooks, Session
from ._orchestrator import Orchestrator
from ._provider import Provider
from ._source import AsyncModuleSourceResolver, ModuleSourceResolver
from ._tool import Tool

T = TypeVar("T")

MountPoint: TypeAlias = Literal["orchestrator", "context", "providers", "tools", "hooks", "module-source-resolver"]
"""Where things are mounted: providers and tools by name, of the others there is one each, hooks are built in.

``mount("session", x, name="orchestrator")`` (or ``"context"``) is understood as the mount point of that name.
"""


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

    turn_number: int
    """The number of the latest turn, counted from 1; 0 before the first. A context that loads a conversation sets it."""

    loader: Any
    """The module loader."""

    session_state: dict[str, Any]
    """A dict for modules to share; the kernel never looks at it."""

    @property
    def session(self) -> Session:
        """The session this coordinator belongs to."""

    @property
    def session_id(self) -> str:
        """The session's id."""

    @property
    def parent_id(self) -> str | None:
        """The parent session's id, for a child."""

    @property
    def config(self) -> dict[str, Any]:
        """The whole mount plan; a module's own part is what `mount` got as its second argument."""

    @property
    def hooks(self) -> Hooks:
        """Where events are emitted and handlers registered."""

    @property
    def mount_points(self) -> MutableMapping[str, Any]:
        """What is mounted where, live; prefer `get`. A module's ``hooks`` are its own here, too."""

    @property
    def cancellation(self) -> Cancellation:
        """The session's stop button."""

    @property
    def channels(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Who contributes to which channel: ``name`` and ``callback``."""

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning; None for no limit."""

    @property
    def injection_size_limit(self) -> int | None:
        """Characters that one injection may have; None for no limit."""

    @overload
    def mount(
        self, mount_point: Literal["orchestrator"], module: Orchestrator, /, name: str | None = None
    ) -> Awaitable[None]: ...
    @overload
    def mount(
        self, mount_point: Literal["context"], module: ContextManager, /, name: str | None = None
    ) -> Awaitable[None]: ...
    @overload
    def mount(
        self, mount_point: Literal["providers"], module: Provider, /, name: str | None = None
    ) -> Awaitable[None]: ...
    @overload
    def mount(self, mount_point: Literal["tools"], module: Tool, /, name: str | None = None) -> Awaitable[None]: ...
    @overload
    def mount(
        self,
        mount_point: Literal["module-source-resolver"],
        module: ModuleSourceResolver | AsyncModuleSourceResolver,
        /,
        name: str | None = None,
    ) -> Awaitable[None]: ...
    @overload
    def mount(
        self, mount_point: Literal["session"], module: Orchestrator, /, name: Literal["orchestrator"]
    ) -> Awaitable[None]: ...
    @overload
    def mount(
        self, mount_point: Literal["session"], module: ContextManager, /, name: Literal["context"]
    ) -> Awaitable[None]: ...
    def mount(self, mount_point: str, module: Any, /, name: str | None = None) -> Awaitable[None]:
        """Put a module in its place; this happens at the call, awaiting is optional.

        A type checker verifies that the module has the members that its `MountPoint` asks for.

        Args:
            mount_point: A `MountPoint` except ``"hooks"``; handlers are registered with `hooks` instead.
            module: What to mount.
            name: For providers and tools; left out, the module's own ``name``.

        Raises:
            ValueError: There is no such mount point, or a name is needed.
        """
        raise NotImplementedError

    def unmount(self, mount_point: str, /, name: str | None = None) -> Awaitable[None]:
        """Take a module out of its place; this happens at the call, awaiting is optional. Cleanups do not run.

        Raises:
            ValueError: There is no such mount point, or a name is needed.
        """

    @overload
    def get(self, mount_point: Literal["orchestrator"], /, name: str | None = None) -> Orchestrator | None: ...
    @overload
    def get(self, mount_point: Literal["context"], /, name: str | None = None) -> ContextManager | None: ...
    @overload
    def get(self, mount_point: Literal["providers"], /, name: None = None) -> dict[str, Provider]: ...
    @overload
    def get(self, mount_point: Literal["providers"], /, name: str) -> Provider | None: ...
    @overload
    def get(self, mount_point: Literal["tools"], /, name: None = None) -> dict[str, Tool]: ...
    @overload
    def get(self, mount_point: Literal["tools"], /, name: str) -> Tool | None: ...
    @overload
    def get(self, mount_point: Literal["hooks"], /, name: str | None = None) -> Hooks: ...
    @overload
    def get(
        self, mount_point: Literal["module-source-resolver"], /, name: str | None = None
    ) -> ModuleSourceResolver | AsyncModuleSourceResolver | None: ...
    def get(self, mount_point: str, /, name: str | None = None) -> Any:
        """Return what is mounted: one module or None, or for providers and tools without a name the live dict.

        A type checker knows the type for each `MountPoint`: ``get("tools")`` is a ``dict[str, Tool]``, ``get("tools", "bash")`` a
        ``Tool | None``, ``get("context")`` a ``ContextManager | None``.

        Raises:
            ValueError: There is no such mount point.
        """
        raise NotImplementedError

    @overload
    def get_mounted(self, mount_point: Literal["orchestrator"], /) -> Orchestrator | None: ...
    @overload
    def get_mounted(self, mount_point: Literal["context"], /) -> ContextManager | None: ...
    @overload
    def get_mounted(self, mount_point: Literal["providers"], /) -> dict[str, Provider]: ...
    @overload
    def get_mounted(self, mount_point: Literal["tools"], /) -> dict[str, Tool]: ...
    @overload
    def get_mounted(self, mount_point: Literal["hooks"], /) -> Hooks: ...
    @overload
    def get_mounted(
        self, mount_point: Literal["module-source-resolver"], /
    ) -> ModuleSourceResolver | AsyncModuleSourceResolver | None: ...
    def get_mounted(self, mount_point: str, /) -> Any:
        """Return everything at a mount point; the same as `get` without a name."""
        raise NotImplementedError

    def owner_of(self, mount_point: str, /, name: str | None = None) -> str | None:
        """Return which module mounted what is at a mount point; None for the application, or if there is nothing.

        It is the module's id, with ``#`` and a further name where a plan names a module more than once. The host keeps it: no module
        can mount something in the name of another.
        """

    def register_cleanup(self, fn: Cleanup, /) -> None:
        """Have something called on closing; what was registered last is called first."""

    def register_capability(self, name: str, value: Any) -> None:
        """Offer something to other modules under a dotted name."""

    def get_capability(self, name: str) -> Any:
        """Return what is offered under a name, or None."""

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Contribute to a channel; the callback, sync or async, is called whenever the channel is collected."""

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return what the channel's contributors return, in order; None and failures are left out."""

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

    def register_step_wrapper(self, wrapper: StepWrapper, /) -> Callable[[], None]:
        """Have ``wrapper(step, run)`` called around every model call and every tool call of loops that use `run_step`.

        Wrappers nest in the order of registration, the first one outermost. Between its call and ``run()``, and after that, a
        wrapper has the plan's ``hook`` deadline each time; it must not wait for another step in between.

        Returns:
            A callable that removes the wrapper, once or more.
        """

    async def run_step(
        self,
        step: Step,
        run: Callable[[], Awaitable[Any]],
        /,
        *,
        admit: Callable[[], Awaitable[Any]] | None = None,
        limiter: Any = None,
    ) -> Any:
        """Make one model call or tool call as a step: inside the step wrappers, and as the current call.

        Args:
            step: What is called; steps that run at the same time are made a group with `ordered_steps` first.
            run: Makes the call and returns its result.
            admit: Decides, inside the wrappers, whether the call is made: returns None, or the result in place of the call's.
            limiter: An async context manager, such as `anyio.CapacityLimiter`, that ``admit`` and ``run`` run inside of.

        Returns:
            The result, of ``run``, ``admit`` or a wrapper. What any of them raises is raised here.

        Raises:
            DeadlineExceeded: A wrapper overran its deadline.
        """

    async def cleanup(self) -> None:
        """Run the registered cleanups; closing the session does so by itself."""

    def reset_turn(self) -> None:
        """Start counting injections anew."""

    def request_cancel(self, immediate: bool = False) -> Any:
        """Request a stop through `cancellation`; this happens at the call."""

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

    async def run_shielded(self, fn: Callable[..., Awaitable[T]], /, *args: Any, name: str | None = None) -> T:
        """Run work to its end before a cancellation of the caller is delivered.

        For work that an application may call outside a turn, such as storing a message. There
        ``Task.cancel()`` of asyncio goes through a shielded scope. Inside a turn, and while a
        session opens or closes, AnyIO's ``CancelScope(shield=True)`` is enough.

        Args:
            fn: The work, which must bound itself. It runs in a child task.
            args: Its arguments.
            name: The name of the task, for reports.

        Returns:
            Its result. Its error is raised here.
        """

    def to_dict(self) -> dict[str, Any]:
        """Describe what is mounted, by names."""
