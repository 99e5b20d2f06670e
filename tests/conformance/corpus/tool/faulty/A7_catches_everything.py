"""Planted: cancellation is caught together with errors and becomes a result."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Fetch:
    name = "fetch"
    description = "Fetches a page."

    def get_schema(self):
        return {"type": "object", "properties": {"page": {"type": "string"}}, "required": ["page"]}

    async def execute(self, input):
        try:
            await anyio.sleep(0.01)
            return ToolResult(output=f"page {input['page']}")
        except BaseException as error:
            return ToolResult(success=False, error={"message": repr(error)})


async def mount(coordinator, config):
    await coordinator.mount("tools", Fetch())
