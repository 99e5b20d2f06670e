"""Keeps named counters.

Planted: cleanup takes its only resource out of a list; the second run finds the list empty and raises.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Counters:
    name = "bump"
    description = "Adds one to a named counter and returns it."
    input_schema = {"type": "object", "properties": {"counter": {"type": "string"}}, "required": ["counter"]}

    def __init__(self):
        self.values = {}

    async def execute(self, input):
        counter = input.get("counter")
        if not isinstance(counter, str):
            return ToolResult(success=False, error={"message": "counter has to be a string"})
        self.values[counter] = self.values.get(counter, 0) + 1
        return ToolResult(output=self.values[counter])


async def mount(coordinator, config):
    tools = [Counters()]
    await coordinator.mount("tools", tools[0])

    async def cleanup():
        tools.pop().values.clear()

    return cleanup
