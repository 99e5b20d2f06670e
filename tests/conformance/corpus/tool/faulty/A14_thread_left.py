"""Planted: a thread goes on after the session."""

import threading

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Background:
    name = "background"
    description = "Starts background work."

    def __init__(self):
        self._stop = threading.Event()

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, input):
        threading.Thread(target=self._stop.wait, daemon=True, name="background work").start()
        return ToolResult(output="started")


async def mount(coordinator, config):
    await coordinator.mount("tools", Background())
