"""Both lifetime forms of a module are mount functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from amplifier.contracts import Coordinator, MountFunction, OnSessionReady, SimpleMount, StructuredMount


async def mount_with_cleanup(coordinator: Coordinator, config: dict[str, Any]) -> Callable[[], None]:
    return coordinator.hooks.register("tool:pre", lambda event, data: None)


async def mount_and_decline(coordinator: Coordinator, config: dict[str, Any]) -> None:
    return None


@asynccontextmanager
async def mount_structured(coordinator: Coordinator, config: dict[str, Any]) -> AsyncIterator[None]:
    yield


async def on_session_ready(coordinator: Coordinator) -> None:
    return None


def test_every_lifetime_form_fits_the_type_of_mount_functions() -> None:
    simple: list[SimpleMount] = [mount_with_cleanup, mount_and_decline]
    structured: StructuredMount = mount_structured
    every: list[MountFunction] = [*simple, structured]
    ready: OnSessionReady = on_session_ready
    assert all(callable(function) for function in [*every, ready])
