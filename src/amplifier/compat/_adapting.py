"""Published modules as they are mounted: what they mount and register is fitted to our sessions, in place.

On asyncio a published loop is cancelled the published way (`_turns`) and the processes of published tools are ended with their calls
(`_processes`); on trio what fails for want of asyncio is named (`_on_trio`). A native loader asks about every module it has
loaded (`_install.look_at`), and ours get their own mount function back; the mirror's loader mounts through `mount_published`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amplifier.contracts._containment import running_asyncio_loop

from ._backends import is_published, refuse_asyncio_on_trio
from ._on_trio import TELLING, name_failures, naming_failures, raise_named
from ._processes import guard_tools
from ._turns import run_in_a_turn

_POINTS = ("orchestrator", "context", "providers", "tools")


def adapted(module_id: str, mount: Callable[..., Any]) -> Callable[..., Any]:
    """The mount function of a module that a native loader loaded, so that it fits our sessions if it is a published one.

    Raises:
        ModuleLoadError: Trio runs, and a published module calls asyncio; names the first such call and where it stands.
    """
    package = getattr(mount, "__module__", None)
    if not isinstance(package, str) or not is_published(package):
        return mount
    if running_asyncio_loop() is None:
        refuse_asyncio_on_trio(package, module_id)
    if not inspect.iscoroutinefunction(mount):
        return mount  # a structured mount, which is ours

    @functools.wraps(mount)
    async def mounting(coordinator: Any, config: Any) -> Any:
        before = dict(_mounted(coordinator))
        answer = await _named_mount(module_id, mount, coordinator, config)
        for (point, name), thing in _mounted(coordinator):
            if before.get((point, name)) is not thing:
                _fit(module_id, point, name, thing)
        _fit_handlers(module_id, coordinator)
        return answer

    return mounting


async def mount_published(module_id: str, mount: Callable[..., Any], coordinator: Any, config: Any) -> Any:
    """Mount a module in a published session; what it mounts names itself when it fails for want of asyncio."""
    if running_asyncio_loop() is not None or not is_published(str(getattr(mount, "__module__", ""))):
        return await _mount(mount, coordinator, config)
    before = dict(_mounted(coordinator))
    coordinator.hooks.mounting = module_id
    try:
        answer = await _named_mount(module_id, mount, coordinator, config)
    finally:
        coordinator.hooks.mounting = None
    for (point, name), thing in _mounted(coordinator):
        if before.get((point, name)) is not thing:
            name_failures(module_id, point, thing)
    return answer


async def _mount(mount: Callable[..., Any], coordinator: Any, config: Any) -> Any:
    answer = mount(coordinator, config)
    if hasattr(type(answer), "__aenter__"):  # a module of ours, in the structured form
        return await coordinator.host(answer, name=getattr(mount, "__module__", None))
    return await answer


async def _named_mount(module_id: str, mount: Callable[..., Any], coordinator: Any, config: Any) -> Any:
    try:
        return await _mount(mount, coordinator, config)
    except TELLING as exc:
        raise_named(module_id, exc)
        raise


def _mounted(coordinator: Any) -> Iterator[tuple[tuple[str, str | None], Any]]:
    for point in _POINTS:
        there = coordinator.get(point)
        if isinstance(there, Mapping):
            yield from (((point, name), thing) for name, thing in list(there.items()))
        elif there is not None:
            yield (point, None), there


def _fit(module_id: str, point: str, name: str | None, thing: Any) -> None:
    name_failures(module_id, point, thing)
    if point == "tools":
        guard_tools({name: thing})
    elif point == "orchestrator" and running_asyncio_loop() is not None:
        run_in_a_turn(thing)


def _fit_handlers(module_id: str, coordinator: Any) -> None:
    owner = getattr(coordinator, "module_id", None)
    if owner is None or running_asyncio_loop() is not None:
        return
    for registration in coordinator.hooks.registrations_of(owner):
        registration.handler = naming_failures(module_id, registration.handler)
