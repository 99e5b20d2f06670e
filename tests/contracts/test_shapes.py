"""What fits the Protocols of the contracts, at run time and for a type checker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from amplifier.contracts import (
    AsyncModuleSourceResolver,
    Coordinator,
    Handler,
    HookHandler,
    ModuleSource,
    ModuleSourceResolver,
    MountFunction,
    OnSessionReady,
    SimpleMount,
    StructuredMount,
)
from amplifier.models import HookResult


class Folder:
    def resolve(self) -> Path:
        return Path()


class Workspace:
    def resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder()


class WorkspaceOfToday:
    """The later spelling, with both hints."""

    def resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ModuleSource:
        return Folder()


class Registry:
    async def async_resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder()


def test_sync_and_async_resolvers_are_distinguished() -> None:
    resolvers: list[ModuleSourceResolver] = [Workspace(), WorkspaceOfToday()]
    waiting: AsyncModuleSourceResolver = Registry()
    assert all(isinstance(resolver, ModuleSourceResolver) for resolver in resolvers)
    assert isinstance(waiting, AsyncModuleSourceResolver)
    assert not isinstance(Registry(), ModuleSourceResolver)
    assert not isinstance(Workspace(), AsyncModuleSourceResolver)


class Watcher:
    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        return HookResult()


async def watch(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult()


def watch_in_place(event: str, data: dict[str, Any]) -> None: ...


def test_functions_and_objects_are_handlers() -> None:
    handlers: list[HookHandler] = [Watcher(), watch]
    registered: list[Handler] = [*handlers, watch_in_place]
    assert all(isinstance(handler, HookHandler) for handler in registered)


# ── mount functions ──────────────────────────────────────────────────────────────────────────────


async def mount_with_cleanup(
    coordinator: Coordinator, config: dict[str, Any]
) -> Callable[[], None]:
    return coordinator.hooks.register("tool:pre", lambda event, data: None)


async def mount_and_decline(coordinator: Coordinator, config: dict[str, Any]) -> None: ...


@asynccontextmanager
async def mount_structured(coordinator: Coordinator, config: dict[str, Any]) -> AsyncIterator[None]:
    yield


async def on_session_ready(coordinator: Coordinator) -> None: ...


def test_every_lifetime_form_fits_mount_type() -> None:
    simple: list[SimpleMount] = [mount_with_cleanup, mount_and_decline]
    structured: StructuredMount = mount_structured
    every: list[MountFunction] = [*simple, structured]
    ready: OnSessionReady = on_session_ready
    assert all(callable(function) for function in [*every, ready])
