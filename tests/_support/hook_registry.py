"""A registry of hooks without a session, and a handler that takes its time."""

from __future__ import annotations

from typing import Any

import anyio

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
