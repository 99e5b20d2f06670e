"""The coordinator as one module sees it: the same object, but everything registered through it carries the module's id.

So a module that fails or is unmounted can be undone and blamed, and none can take away what another registered. Once its module
was undone or the session is closed, a view registers nothing any more. Attributes the view does not define are the coordinator's
own, for reading and for writing: published modules set theirs on it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Any, Protocol

from amplifier.contracts import DEFAULT, Inherited, OnFailure, StepWrapper

from ..hooks.registry import HookRegistry
from .mounts import DONE, Done
from .ownership import Ledger

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

_GUARDED = ("approval_system", "display_system")
_OWN = frozenset({"_core", "_hooks_view", "_generation", "_on_failure", "_owner"})


class _Registrations(Protocol):
    """The part of the coordinator that a view uses: registrations on behalf of a module."""

    ledger: Ledger

    @property
    def hooks(self) -> HookRegistry: ...
    def mount_as(self, owner: str | None, mount_point: str, module: Any, name: str | None = None) -> None: ...
    def unmount_as(self, owner: str | None, mount_point: str, name: str | None = None) -> None: ...
    def register_cleanup_as(self, owner: str | None, cleanup_fn: Any) -> None: ...
    def register_capability_as(self, owner: str | None, name: str, value: Any) -> None: ...
    def register_contributor_as(
        self, owner: str | None, channel: str, name: str, callback: Callable[[], Any]
    ) -> None: ...
    def start_soon_as(
        self,
        owner: str | None,
        fn: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
        fatal: bool = False,
    ) -> None: ...
    async def host_as(
        self, owner: str | None, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]: ...
    def register_step_wrapper_as(self, owner: str | None, wrapper: StepWrapper) -> Callable[[], None]: ...
    async def cleanup_of(self, owner: str) -> None: ...


class HooksView:
    """The hook registry as one module sees it."""

    __slots__ = ("_generation", "_ledger", "_on_failure", "_owner", "_registry")

    def __init__(
        self, registry: HookRegistry, owner: str, on_failure: OnFailure, ledger: Ledger, generation: int
    ) -> None:
        self._registry = registry
        self._owner = owner
        self._on_failure = on_failure
        self._ledger = ledger
        self._generation = generation

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
        """Add a handler of this module; see `HookRegistry.register`.

        Raises:
            SessionStateError: The module was undone, or the session is closed.
        """
        if self._generation != self._ledger.generation:
            self._ledger.check(self._owner, self._generation, "a handler")
        return self._registry.register_as(
            self._owner,
            event,
            handler,
            priority,
            name,
            timeout=timeout,
            on_failure=on_failure or self._on_failure,
            fields=fields,
        )

    on = register

    def unregister(self, name: str) -> None:
        """Remove this module's newest registration of that name."""
        self._registry.unregister_as(self._owner, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def __repr__(self) -> str:
        return f"<hooks of {self._registry!r} for module {self._owner!r}>"


class ModuleView:
    """What a module's ``mount`` receives.

    Whatever registers something raises `SessionStateError` once the module was undone or the session is closed.
    """

    __slots__ = ("__weakref__", "_core", "_generation", "_hooks_view", "_on_failure", "_owner")

    _core: _Registrations
    _hooks_view: HooksView | None
    _generation: int
    _on_failure: OnFailure
    _owner: str

    def __init__(self, core: _Registrations, owner: str, on_failure: OnFailure) -> None:
        own = object.__setattr__
        own(self, "_core", core)
        own(self, "_owner", owner)
        own(self, "_on_failure", on_failure)
        own(self, "_hooks_view", None)
        own(self, "_generation", core.ledger.generation)

    @property
    def hooks(self) -> HooksView:
        """The session's hook registry, registering on behalf of this module."""
        hooks = self._hooks_view
        if hooks is None:  # most modules never ask
            core = self._core
            hooks = HooksView(core.hooks, self._owner, self._on_failure, core.ledger, self._generation)
            object.__setattr__(self, "_hooks_view", hooks)
        return hooks

    @property
    def module_id(self) -> str:
        """The module this view belongs to."""
        return self._owner

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Done:
        """Mount something of this module; see `ModuleCoordinator.mount`."""
        core = self._core
        if self._generation != core.ledger.generation:
            self._check("a mount")
        core.mount_as(self._owner, mount_point, module, name)
        return DONE

    def unmount(self, mount_point: str, name: str | None = None) -> Done:
        """Unmount something of this module; what another one mounted is refused."""
        self._core.unmount_as(self._owner, mount_point, name)
        return DONE

    def register_cleanup(self, cleanup_fn: Any) -> None:
        """Have ``cleanup_fn()`` called when the session closes, or when this module is undone.

        A module that was undone may still register one, for what it opened too late to be closed with the rest.
        """
        self._core.ledger.check(self._owner, self._generation, "a cleanup", undone_may=True)
        self._core.register_cleanup_as(self._owner, cleanup_fn)

    def register_capability(self, name: str, value: Any) -> None:
        """Offer a value to other modules."""
        self._check("a capability")
        self._core.register_capability_as(self._owner, name, value)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Contribute to a channel."""
        self._check("a contributor")
        self._core.register_contributor_as(self._owner, channel, name, callback)

    def register_step_wrapper(self, wrapper: StepWrapper) -> Callable[[], None]:
        """Wrap every model call and tool call."""
        self._check("a step wrapper")
        return self._core.register_step_wrapper_as(self._owner, wrapper)

    def start_soon(
        self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None, fatal: bool = False
    ) -> None:
        """Start background work of this module; see `ModuleCoordinator.start_soon`."""
        self._check("background work")
        self._core.start_soon_as(self._owner, fn, *args, name=name, fatal=fatal)

    async def host(
        self, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Keep an async context manager of this module open in a task of its own."""
        self._check("a hosted context manager")
        return await self._core.host_as(self._owner, context_manager, name=name)

    async def cleanup(self) -> None:
        """Run this module's cleanups; only the session itself may close everything."""
        await self._core.cleanup_of(self._owner)

    def _check(self, what: str) -> None:
        ledger = self._core.ledger
        if self._generation != ledger.generation:
            ledger.check(self._owner, self._generation, what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            raise AttributeError(f"{name!r} of a module's coordinator cannot be set")
        if name in _GUARDED and getattr(self._core, name) is not None:
            logger.warning("module %r replaces the session's %s", self._owner, name)
        setattr(self._core, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._core, name)

    def __repr__(self) -> str:
        return f"<{self._core!r} for module {self._owner!r}>"


# From Python 3.12 on, isinstance() with a Protocol looks at the class only and does not see what __getattr__ would find.
# Writing goes through __setattr__ all the same.
for _name in (
    *(
        "session",
        "session_id",
        "parent_id",
        "config",
        "loader",
        "mount_points",
        "cancellation",
        "session_state",
        "turn_number",
    ),
    *("approval_system", "display_system", "channels", "injection_budget_per_turn", "injection_size_limit"),
    *("get", "get_mounted", "get_capability", "collect_contributions", "process_hook_result", "reset_turn"),
    *("request_cancel", "run_section", "run_step", "to_dict"),
):
    setattr(ModuleView, _name, property(attrgetter(f"_core.{_name}")))
