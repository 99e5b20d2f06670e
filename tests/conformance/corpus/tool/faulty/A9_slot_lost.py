"""Planted: a cancelled call never gives its slot back."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Limited:
    name = "limited"
    description = "Does at most three things at a time."

    def __init__(self):
        self._slots = anyio.Semaphore(3)

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}}

    async def execute(self, input):
        await self._slots.acquire()
        try:
            await anyio.sleep(0.001)
            result = ToolResult(output=str(input.get("text", "")))
        except Exception as error:
            result = ToolResult(success=False, error={"message": str(error)})
        self._slots.release()
        return result


async def mount(coordinator, config):
    await coordinator.mount("tools", Limited())
