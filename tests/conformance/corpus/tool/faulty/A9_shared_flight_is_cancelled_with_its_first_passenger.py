"""Planted: equal calls share one task, and all of them fall when the first is cancelled."""

import asyncio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
__amplifier_backends__ = ("asyncio",)


class Shared:
    name = "shared_fetch"
    description = "Fetches a page once, however many ask."

    def __init__(self):
        self._flights = {}

    def get_schema(self):
        return {"type": "object", "properties": {"page": {"type": "string"}}, "required": ["page"]}

    async def _fetch(self, page):
        await asyncio.sleep(0.005)
        return f"page {page}"

    async def execute(self, input):
        page = str(input.get("page"))
        task = self._flights.get(page)
        if task is None:
            task = self._flights[page] = asyncio.ensure_future(self._fetch(page))
            task.add_done_callback(lambda done: self._flights.pop(page, None))
        return ToolResult(output=await task)


async def mount(coordinator, config):
    tool = Shared()
    await coordinator.mount("tools", tool)

    async def cleanup():
        for task in list(tool._flights.values()):
            task.cancel()

    return cleanup
