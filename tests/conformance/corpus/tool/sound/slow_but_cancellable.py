"""Waits for seconds when asked to, in one place that cancellation reaches at once."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Wait:
    name = "wait"
    description = "Waits for up to 1500 milliseconds and returns how long it waited."
    input_schema = {
        "type": "object",
        "properties": {"milliseconds": {"type": "integer", "minimum": 0, "maximum": 1500}},
        "required": ["milliseconds"],
    }

    async def execute(self, input):
        value = input.get("milliseconds")
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value // 1
            or not 0 <= value <= 1500
        ):
            return ToolResult(success=False, error={"message": "milliseconds is a whole number from 0 to 1500"})
        await anyio.sleep(int(value) / 1000)
        return ToolResult(output={"waited": int(value)})


async def mount(coordinator, config):
    await coordinator.mount("tools", Wait())
