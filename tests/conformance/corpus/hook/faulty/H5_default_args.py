"""Adds configured default arguments to tool calls, such as a timeout for every command.

Fault: the data of its `modify` holds only what it changed; for other hooks and for the loop the tool's name and the id of the
call are gone from the payload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier import HookResult

__amplifier_module_type__ = "hook"

DEFAULTS: dict[str, dict[str, Any]] = {"*": {"verbose": False}, "bash": {"timeout": 60}}


class DefaultArguments:
    def __init__(self, defaults: dict[str, dict[str, Any]]) -> None:
        self._defaults = defaults

    def _for(self, tool: Any) -> dict[str, Any]:
        own = self._defaults.get(tool, {}) if isinstance(tool, str) else {}
        return {**self._defaults.get("*", {}), **own}

    async def on_tool_pre(self, event: str, data: dict[str, Any]) -> HookResult:
        given = data.get("tool_input")
        if not isinstance(given, dict):
            return HookResult(action="continue")
        complete = {**self._for(data.get("tool_name")), **given}
        if complete == given:
            return HookResult(action="continue")
        return HookResult(action="modify", data={"tool_input": complete})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Callable[[], None]:
    configured = (config or {}).get("defaults")
    hook = DefaultArguments(configured if isinstance(configured, dict) else DEFAULTS)
    return coordinator.hooks.register("tool:pre", hook.on_tool_pre, priority=40, name="default-arguments")
