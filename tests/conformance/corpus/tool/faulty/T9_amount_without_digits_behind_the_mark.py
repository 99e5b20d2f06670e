"""Finds an amount such as ``EUR 12.50``; one without decimals gives what is not JSON."""

import re

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

AMOUNT = re.compile(r"EUR \d{2,4}(\.\d\d)?")


class Amounts:
    name = "find_amount"
    description = "Find the first amount in a text."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text must be a string"})
        found = AMOUNT.search(text)
        if found is None:
            return ToolResult(success=True, output={"amount": None})
        amount = found.group(0) if found.group(1) else found
        return ToolResult(success=True, output={"amount": amount})


async def mount(coordinator, config):
    tool = Amounts()
    coordinator.mount("tools", tool, name=tool.name)

    async def cleanup():
        pass

    return cleanup
