"""The coordinator: everything the host offers to a module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
    runtime_checkable,
)

from amplifier.models import HookResult

from ._approval import ApprovalSystem, DisplaySystem
from ._context import ContextManager
from ._host import Cancellation, Cleanup, Hooks, Session
from ._orchestrator import Orchestrator
from ._provider import Provider
from ._source import AsyncModuleSourceResolver, ModuleSourceResolver
from ._tool import Tool
from .calls import Step, StepWrapper

T = TypeVar("T")
P = ParamSpec("P")

MountPoint: TypeAlias = Literal[
    "orchestrator", "context", "providers", "tools", "hooks", "module-source-resolver"
]
"""A place for modules. It holds named providers or tools, or one module of another type.

The hooks are built in. ``mount("session", x, name="orchestrator")``, or ``"context"``, means the
mount point of that name.
"""


# Modules are written against this Protocol, so that they never import the kernel, which
# implements it. `get` and `mount` have one typed signature for each mount point.
#
# On Python 3.12 and later `isinstance` doesn't see attributes that arrive through ``__getattr__``.
# A proxy for a real coordinator can be a correct host and still fail that check.


@runtime_checkable
class Coordinator(Protocol):
    """Everything the host offers to a module. It is the first argument of ``mount``.

    Each module gets a separate view, so that the kernel can undo and name its registrations. After
    a module has been undone because its mount failed, or after the session has closed, registering
    through its view raises `amplifier.errors.SessionStateError`. The view of an undone module still
    accepts cleanups, but nothing else. Modules may set attributes here, which all modules of the
    session share.
    """

    approval_system: ApprovalSystem | None
    """The system that answers hooks that ask. Without one every question is denied."""

    display_system: DisplaySystem | None
    """The system that shows messages to the user. Without one they are logged."""

    turn_number: int
    """The number of the latest turn, counted from 1, or 0 before the first turn.

    A context that loads a conversation sets it.
    """

    loader: Any
    """The module loader."""

    session_state: dict[str, Any]
    """A dict for modules to share. The kernel never reads it."""

    @property
    def session(self) -> Session:
        """The session of this coordinator."""

    @property
    def session_id(self) -> str:
        """The id of the session."""

    @property
    def parent_id(self) -> str | None:
        """The id of the parent session, or None."""

    @property
    def config(self) -> dict[str, Any]:
        """The whole mount plan. The second argument of `mount` is the part for the module."""

    @property
    def hooks(self) -> Hooks:
        """The registry that emits events and registers handlers."""

    @property
    def mount_points(self) -> MutableMapping[str, Any]:
        """The mounted modules by mount point, live. Prefer `get`.

        Here too, ``hooks`` is the module's own view.
        """

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation token of the session."""

    @property
    def channels(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The contributors by channel, each with its ``name`` and ``callback``."""

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning, or None for no limit."""

    @property
    def injection_size_limit(self) -> int | None:
        """Characters that one injection may have, or None for no limit."""

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
    def mount(
        self, mount_point: Literal["tools"], module: Tool, /, name: str | None = None
    ) -> Awaitable[None]: ...
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
        self,
        mount_point: Literal["session"],
        module: Orchestrator,
        /,
        name: Literal["orchestrator"],
    ) -> Awaitable[None]: ...
    @overload
    def mount(
        self, mount_point: Literal["session"], module: ContextManager, /, name: Literal["context"]
    ) -> Awaitable[None]: ...
    def mount(self, mount_point: str, module: Any, /, name: str | None = None) -> Awaitable[None]:
        """Put a module at a mount point.

        The call takes effect immediately, and awaiting is optional.

        A type checker verifies that the module has the members that its `MountPoint` requires.

        Args:
            mount_point: A `MountPoint` except ``"hooks"``. Handlers are registered with `hooks`.
            module: The module.
            name: The name of a provider or tool. If left out, the module's own ``name``.

        Raises:
            ValueError: The mount point is unknown, or a name is needed.
        """
        raise NotImplementedError

    def unmount(self, mount_point: str, /, name: str | None = None) -> Awaitable[None]:
        """Remove a module.

        The call takes effect immediately, and awaiting is optional.

        Its cleanups don't run.

        Raises:
            ValueError: The mount point is unknown, or a name is needed.
        """

    @overload
    def get(
        self, mount_point: Literal["orchestrator"], /, name: str | None = None
    ) -> Orchestrator | None: ...
    @overload
    def get(
        self, mount_point: Literal["context"], /, name: str | None = None
    ) -> ContextManager | None: ...
    @overload
    def get(
        self, mount_point: Literal["providers"], /, name: None = None
    ) -> dict[str, Provider]: ...
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
        """Return one module or None, or for providers and tools without a name the live dict.

        A type checker infers the type for each `MountPoint`: ``get("tools")`` is a ``dict[str,
        Tool]``, ``get("tools", "bash")`` a ``Tool | None``, and ``get("context")`` a
        ``ContextManager | None``.

        Raises:
            ValueError: The mount point is unknown.
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
        """Return everything at a mount point, as `get` does without a name."""
        raise NotImplementedError

    def owner_of(self, mount_point: str, /, name: str | None = None) -> str | None:
        """Return the id of the module that mounted the object, or None if no module did.

        The id is followed by ``#`` and a further name if the plan lists the module more than once.
        The host records it, so a module can't mount anything in the name of another one.
        """

    def register_cleanup(self, fn: Cleanup, /) -> None:
        """Call a function on closing. The function registered last is called first."""

    def register_capability(self, name: str, value: Any) -> None:
        """Offer a value to other modules under a dotted name."""

    def get_capability(self, name: str) -> Any:
        """Return the value that is offered under a name, or None."""

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Call a function, sync or async, whenever the channel is collected."""

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return the results of the channel's contributors, in order.

        None and failures are left out.
        """

    async def process_hook_result(
        self, result: HookResult, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        """Carry out a verdict: store injections, ask for approval, show messages.

        Args:
            result: The result of `Hooks.emit`.
            event: The event of the result.
            hook_name: Name of the hook, for a result that doesn't have one.

        Returns:
            The part left to the caller: ``deny``, ``modify``, ``continue``, or ``inject_context``
            with the ephemeral injections.

        Raises:
            ValueError: An injection is longer than `injection_size_limit`. Nothing was stored.
        """

    def register_step_wrapper(self, wrapper: StepWrapper, /) -> Callable[[], None]:
        """Call ``wrapper(step, run)`` around every step of loops that use `run_step`.

        Wrappers nest in the order of registration, the first one outermost. A wrapper has the
        plan's ``hook`` deadline between its call and ``run()``, and again after that. It must not
        wait for another step in between.

        Returns:
            A callable that removes the wrapper. It may be called more than once.
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
        """Make one model call or tool call inside the step wrappers, as the current call.

        Args:
            step: The call. Steps that run at the same time must be grouped with `ordered_steps`
                first.
            run: Makes the call and returns its result.
            admit: Decides, inside the wrappers, whether the call is made. It returns None, or the
                result in place of the call's.
            limiter: An async context manager, such as `anyio.CapacityLimiter`, around ``admit``
                and ``run``.

        Returns:
            The result of ``run``, ``admit`` or a wrapper. An exception from any of them propagates.

        Raises:
            DeadlineExceeded: A wrapper overran its deadline.
        """

    async def cleanup(self) -> None:
        """Run the registered cleanups, as closing the session does."""

    def reset_turn(self) -> None:
        """Restart the count of injections."""

    def request_cancel(self, immediate: bool = False) -> Any:
        """Request a stop through `cancellation`. The call takes effect immediately."""

    def start_soon(
        self,
        fn: Callable[..., Awaitable[Any]],
        /,
        *args: Any,
        name: str | None = None,
        fatal: bool = False,
    ) -> None:
        """Run background work that ends with the session.

        The session must have been opened with ``async with``.

        Args:
            fn: An async function.
            args: Its arguments.
            name: The name of the task, for reports.
            fatal: True if a crash ends the session. Otherwise it is reported and ends only this
                task.
        """

    async def host(
        self, context_manager: AbstractAsyncContextManager[Any], /, *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Keep an async context manager open in a separate task.

        It may hold task groups and cancel scopes open.

        Args:
            context_manager: The context manager, entered before this returns and exited on closing.
            name: The name of the task, for reports.

        Returns:
            A callable that exits it earlier.
        """

    async def call_within(
        self,
        seconds: float | None,
        who: str,
        fn: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Await one call into third-party code under a deadline, and contain its failure.

        The call is cancelled at its deadline and awaited until it has unwound. A result that it
        still returns is passed on.

        Args:
            seconds: Time limit of the call, or None.
            who: Description of the code, for the text of failures.
            fn: The code.
            args: Its arguments.
            options: Its keyword arguments.

        Raises:
            DeadlineExceeded: The deadline passed. Its ``operation`` is ``who``.
            Exception: The call's own failure, either as raised or contained.
        """
        raise NotImplementedError

    async def run_shielded(
        self, fn: Callable[..., Awaitable[T]], /, *args: Any, name: str | None = None
    ) -> T:
        """Run work to completion before delivering a cancellation of the caller.

        For work that an application may call outside a turn, such as storing a message. There,
        asyncio's ``Task.cancel()`` passes through a shielded scope. Inside a turn, and while a
        session opens or closes, AnyIO's ``CancelScope(shield=True)`` is enough.

        Args:
            fn: The work, which must limit its own duration. It runs in a child task.
            args: Its arguments.
            name: The name of the task, for reports.

        Returns:
            Its result. Its error is raised here.
        """

    def to_dict(self) -> dict[str, Any]:
        """Describe the mounted modules by name."""
