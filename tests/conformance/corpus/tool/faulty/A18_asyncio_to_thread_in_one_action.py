"""Hashes or measures a text.

Planted: the action "hash" uses asyncio.to_thread, whose failure on trio is returned as an error result.
"""

import asyncio
import hashlib

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Digest:
    name = "digest"
    description = "Hashes a text, or measures it."
    input_schema = {
        "type": "object",
        "properties": {"action": {"enum": ["hash", "measure"]}, "text": {"type": "string"}},
        "required": ["action", "text"],
    }

    async def execute(self, input):
        action, text = input.get("action"), input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        if action == "measure":
            return ToolResult(output=len(text))
        if action != "hash":
            return ToolResult(success=False, error={"message": "action is hash or measure"})
        try:
            data = text.encode("utf-8", "surrogatepass")
            return ToolResult(output=await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()))
        except RuntimeError as error:
            return ToolResult(success=False, error={"message": f"hashing failed: {error}"})


async def mount(coordinator, config):
    await coordinator.mount("tools", Digest())
