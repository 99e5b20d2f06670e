"""Published modules in our sessions: what they mount and register is adapted in place.

On asyncio a published loop is cancelled the published way (`turns`) and the processes of published tools are ended with their calls
(`processes`). On trio a module that calls asyncio runs on an asyncio island, where the same holds; of the others, failures for
want of asyncio are translated (`on_trio`). A native loader passes every module that it has loaded to `adapted`; the mirror's loader
mounts through `mount_published`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.kernel.coordinator.module_view import HooksView, ModuleView
from amplifier.kernel.coordinator.mounts import Done
from amplifier.loading import Blueprint

from .asyncio_use import is_built_in, is_published, needs_island
from .methods import put_around
from .on_trio import translate_methods, translated
from .processes import guard_tools
from .turns import run_in_a_turn


def adapted(module_id: str, blueprint: Blueprint) -> Blueprint:
    """A module that a native loader loaded, so that it fits our sessions if it was written for the published kernel.

    Of other third-party modules only the failures of ``on_session_ready`` for want of asyncio are translated: their mount
    function is theirs, and what it raises fails the mount under the module's name.
    """
    mount, ready = blueprint.mount, blueprint.on_session_ready
    package = getattr(mount, "__module__", None)
    if not isinstance(package, str) or is_built_in(package):
        return blueprint
    if not is_published(package):
        if ready is None or running_asyncio_loop() is not None:
            return blueprint
        return attrs.evolve(blueprint, on_session_ready=translated(module_id, ready))
    if needs_island(package):
        return attrs.evolve(blueprint, mount=_adapted_on_island(mount)).on_island(module_id)
    if inspect.iscoroutinefunction(mount):  # a structured mount is none, and no published module has one
        mount = _with_view(module_id, mount)
    return attrs.evolve(blueprint, mount=mount, on_session_ready=ready and _with_view(module_id, ready))


def _with_view(module_id: str, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A function of a published module that gets a `PublishedView`, with its failures translated."""

    @functools.wraps(fn)
    async def calling(coordinator: Any, *args: Any) -> Any:
        if isinstance(coordinator, ModuleView):
            coordinator = PublishedView(coordinator, module_id)
        return await translated(module_id, fn)(coordinator, *args)

    return calling


class PublishedView(ModuleView):
    """The coordinator of a native session as a published module sees it: what it mounts and registers is adapted, at any time.

    Args:
        view: The module's view that the kernel made.
        module_id: What failures are named after; the view's owner may have the number of an instance.
    """

    __slots__ = ("_named",)

    _named: str

    def __init__(self, view: ModuleView, module_id: str) -> None:
        super().__init__(view._core, view._owner, view._on_failure)
        core = view._core
        hooks = _PublishedHooks(core.hooks, view._owner, view._on_failure, core.ledger, view._generation)
        hooks.named = module_id
        own = object.__setattr__
        own(self, "_generation", view._generation)
        own(self, "_named", module_id)
        own(self, "_hooks_view", hooks)

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Done:
        """Adapt a thing and mount it; see `ModuleCoordinator.mount`."""
        point = name if mount_point == "session" else mount_point
        translate_methods(self._named, point, module)
        if point == "tools":
            guard_tools({name or getattr(module, "name", self._named): module})
        elif point == "orchestrator" and running_asyncio_loop() is not None:
            run_in_a_turn(module)
        elif point == "orchestrator":
            put_around(module, "execute", self._execute, key="hooks")
        return super().mount(mount_point, module, name)

    async def _execute(self, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        """Call a loop with the hooks of this view, so that failures of handlers it registers are translated, too."""
        if "hooks" in kwargs:
            kwargs["hooks"] = self.hooks
        return await call(*args, **kwargs)


class _PublishedHooks(HooksView):
    """The hook registry of a native session as a published module sees it."""

    __slots__ = ("named",)

    named: str

    def register(self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any) -> Any:
        """Add a handler with its failures translated; see `HookRegistry.register`."""
        return super().register(event, translated(self.named, handler), priority, name, **options)

    on = register


def _adapted_on_island(mount: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A mount function that runs on an island, where what the module mounts is adapted as on asyncio."""

    @functools.wraps(mount)
    async def mounting(coordinator: Any, config: Any) -> Any:
        return await mount(_IslandView(coordinator), config)

    return mounting


class _IslandView:
    """The coordinator as a published module on an island sees it."""

    __slots__ = ("_behind",)

    _behind: Any

    def __init__(self, coordinator: Any) -> None:
        object.__setattr__(self, "_behind", coordinator)

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Adapt a thing and mount it."""
        point = name if mount_point == "session" else mount_point
        if point == "tools":
            guard_tools({name or getattr(module, "name", "tool"): module})
        elif point == "orchestrator":
            run_in_a_turn(module)
        return self._behind.mount(mount_point, module, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._behind, name, value)

    def __repr__(self) -> str:
        return repr(self._behind)


async def mount_published(module_id: str, mount: Callable[..., Any], coordinator: Any, config: Any) -> Any:
    """Mount a module in a published session, on an island if it needs one; other failures for want of asyncio are translated."""
    package = str(getattr(mount, "__module__", ""))
    if is_built_in(package):
        return await _mount(mount, coordinator, config)
    if needs_island(package):
        from amplifier._islands import mount_on_island  # noqa: PLC0415 — asyncio on trio is for few sessions

        return await mount_on_island(_adapted_on_island(mount), module_id)(coordinator, config)
    return await translated(module_id, _mount)(mount, coordinator, config)


def ready_published(module_id: str, on_session_ready: Callable[..., Any]) -> Callable[..., Any]:
    """``on_session_ready`` of a module in a published session; see `mount_published`."""
    if needs_island(str(getattr(on_session_ready, "__module__", ""))):
        from amplifier._islands import ready_on_island  # noqa: PLC0415 — asyncio on trio is for few sessions

        return ready_on_island(on_session_ready, module_id)
    return translated(module_id, on_session_ready)


async def _mount(mount: Callable[..., Any], coordinator: Any, config: Any) -> Any:
    answer = mount(coordinator, config)
    if hasattr(type(answer), "__aenter__"):  # a module of ours, in the structured form
        return await coordinator.host(answer, name=getattr(mount, "__module__", None))
    return await answer
