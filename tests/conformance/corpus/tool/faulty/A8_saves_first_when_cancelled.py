"""Collects measurements.

Planted: a cancelled call waits three seconds in a shielded section before it ends.
"""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Measure:
    name = "measure"
    description = "Takes a number of samples."
    input_schema = {
        "type": "object",
        "properties": {"samples": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["samples"],
    }

    async def execute(self, input):
        samples = input.get("samples")
        if isinstance(samples, float) and samples.is_integer():
            samples = int(samples)
        if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= 5:
            return ToolResult(success=False, error={"message": "samples has to be a number from 1 to 5"})
        taken = []
        try:
            for number in range(samples):
                await anyio.sleep(0.01)
                taken.append(number * number)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)
            raise
        return ToolResult(output=taken)


async def mount(coordinator, config):
    await coordinator.mount("tools", Measure())
