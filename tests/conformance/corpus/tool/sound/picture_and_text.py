"""Gives content for the model beside its output, and takes part in the session's events."""

import base64

from amplifier import TextBlock, ToolResult
from amplifier.models import ImageBlock

__amplifier_module_type__ = "tool"

PIXEL = base64.b64encode(b"not really a picture").decode()


class Draw:
    name = "draw"
    description = "Draws something."

    def __init__(self, hooks):
        self._hooks = hooks

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"what": {"type": "string", "pattern": "^[a-z]+$"}, "size": {"type": "number"}},
            "required": ["what"],
        }

    async def execute(self, input):
        what = input.get("what")
        if not isinstance(what, str) or not what.isalpha() or not what.islower():
            return ToolResult(success=False, error={"message": "what must be lower-case letters", "code": 7})
        await self._hooks.emit("draw:done", {"what": what})
        picture = ImageBlock(source={"type": "base64", "media_type": "image/png", "data": PIXEL})
        return ToolResult(output={"drawn": what}, content=[TextBlock(text=what), picture])


async def mount(coordinator, config):
    coordinator.register_contributor("observability.events", "draw", lambda: ["draw:done"])
    await coordinator.mount("tools", Draw(coordinator.hooks))
