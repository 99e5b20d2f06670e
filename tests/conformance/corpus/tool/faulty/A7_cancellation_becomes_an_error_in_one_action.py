"""Planted: only the action "refresh" turns cancellation into another error."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Cache:
    name = "cache"
    description = "Shows or refreshes a cache."

    def get_schema(self):
        action = {"type": "string", "enum": ["show", "clear", "refresh"]}
        return {"type": "object", "properties": {"action": action}, "required": ["action"]}

    async def execute(self, input):
        action = input.get("action")
        if action not in ("show", "clear", "refresh"):
            return ToolResult(success=False, error={"message": f"unknown action {action!r}"})
        if action == "refresh":
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class() as error:
                raise RuntimeError("refresh was interrupted") from error
        return ToolResult(output=action)


async def mount(coordinator, config):
    await coordinator.mount("tools", Cache())
