"""Encodes a text.

Planted: with the encoding "raw" the output is bytes, which is no JSON.
"""

import base64

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Encode:
    name = "encode"
    description = "Encodes a text as base64, hex or raw."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "encoding": {"enum": ["base64", "hex", "raw"]}},
        "required": ["text", "encoding"],
    }

    async def execute(self, input):
        text, encoding = input.get("text"), input.get("encoding")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text has to be a string"})
        data = text.encode("utf-8", "surrogatepass")
        if encoding == "base64":
            return ToolResult(output=base64.b64encode(data).decode())
        if encoding == "hex":
            return ToolResult(output=data.hex())
        if encoding == "raw":
            return ToolResult(output=data)
        return ToolResult(success=False, error={"message": "encoding is base64, hex or raw"})


async def mount(coordinator, config):
    await coordinator.mount("tools", Encode())
