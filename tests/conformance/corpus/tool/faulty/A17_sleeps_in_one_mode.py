"""Planted: the mode "careful" blocks the event loop."""

import time

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Deploy:
    name = "deploy"
    description = "Deploys something."

    def get_schema(self):
        mode = {"type": "string", "enum": ["fast", "careful"]}
        return {"type": "object", "properties": {"mode": mode}, "required": ["mode"]}

    async def execute(self, input):
        mode = input.get("mode")
        if mode not in ("fast", "careful"):
            return ToolResult(success=False, error={"message": f"unknown mode {mode!r}"})
        if mode == "careful":
            time.sleep(0.25)
        return ToolResult(output=mode)


async def mount(coordinator, config):
    await coordinator.mount("tools", Deploy())
