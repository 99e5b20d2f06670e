"""A registry of hooks without a session, and a handler that takes its time."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel

from amplifier.kernel import HookRegistry
from amplifier.kernel.runtime.owner import Owner


def registry() -> HookRegistry:
    """A registry that stamps its events as those of session ``s-1``."""
    hooks = HookRegistry()
    hooks.belong_to("s-1", None, None)
    return hooks


def of_module(hooks: HookRegistry, module: str) -> HookRegistry:
    """The registry as a module gets it."""
    return hooks.view_for(Owner(module))


def sleeper(log: list[str], seconds: float, name: str) -> Any:
    """A handler that notes when it begins and, so many seconds later, when it ends."""

    async def handler(event: str, data: dict[str, Any]) -> None:
        log.append(f"{name} began")
        await anyio.sleep(seconds)
        log.append(f"{name} ended")

    return handler


def raising(error: BaseException, *, asynchronous: bool) -> Any:
    """A handler that raises at its call, or when it is awaited."""

    def now(event: str, data: dict[str, Any]) -> None:
        raise error

    async def later(event: str, data: dict[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    return later if asynchronous else now
