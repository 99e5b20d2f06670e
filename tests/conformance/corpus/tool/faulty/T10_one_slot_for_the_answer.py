"""Returns a phrase in capitals.

Planted: the answer waits in a slot that all calls share, so that a call returns the answer of the one after it.
"""

import anyio.lowlevel

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Shout:
    name = "shout"
    description = "Returns the phrase in capitals."
    input_schema = {"type": "object", "properties": {"phrase": {"type": "string"}}, "required": ["phrase"]}

    def __init__(self):
        self.pending = {}

    async def execute(self, input):
        phrase = input.get("phrase")
        if not isinstance(phrase, str):
            return ToolResult(success=False, error={"message": "phrase has to be a string"})
        key = "current"
        self.pending[key] = phrase.upper()
        try:
            await anyio.lowlevel.checkpoint()
            return ToolResult(output=self.pending.get(key, phrase.upper()))
        finally:
            self.pending.pop(key, None)


async def mount(coordinator, config):
    await coordinator.mount("tools", Shout())
