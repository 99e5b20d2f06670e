"""Counts the calls of the session.

Planted: mount is a plain function; what it returns is a method that its source does not show to be no coroutine.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Counter:
    name = "count_calls"
    description = "Returns how often it was called."
    input_schema = {"type": "object", "properties": {}}

    def __init__(self):
        self.calls = 0

    async def execute(self, input):
        self.calls += 1
        return ToolResult(output=self.calls)

    async def close(self):
        self.calls = 0


def mount(coordinator, config):
    counter = Counter()
    coordinator.mount("tools", counter)
    return counter.close
