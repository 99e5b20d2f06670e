"""Computes a factorial within a limit of steps.

Planted: a number that takes too many steps raises TimeoutError out of execute.
"""

import anyio.lowlevel

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Factorial:
    name = "factorial"
    description = "Returns the factorial of a number up to 50."
    input_schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 50}},
        "required": ["n"],
    }

    async def execute(self, input):
        n = input.get("n")
        if isinstance(n, float) and n.is_integer():
            n = int(n)
        if not isinstance(n, int) or isinstance(n, bool) or n < 0:
            return ToolResult(success=False, error={"message": "n has to be a number of at least 0"})
        if n > 50:
            raise TimeoutError(f"{n} takes too many steps")
        product = 1
        for factor in range(2, n + 1):
            product *= factor
        await anyio.lowlevel.checkpoint()
        return ToolResult(output=str(product))


async def mount(coordinator, config):
    await coordinator.mount("tools", Factorial())
