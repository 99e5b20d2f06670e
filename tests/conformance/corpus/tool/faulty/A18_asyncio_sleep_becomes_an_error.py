"""Waits a moment and returns the input.

Planted: asyncio.sleep fails on trio, and the except clause turns that into an ordinary error result.
"""

import asyncio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Echo:
    name = "late_echo"
    description = "Returns the text after a moment."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        try:
            text = input["text"]
            if not isinstance(text, str):
                raise TypeError("text has to be a string")
            await asyncio.sleep(0.005)
            return ToolResult(output=text)
        except Exception as error:
            return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})


async def mount(coordinator, config):
    await coordinator.mount("tools", Echo())
