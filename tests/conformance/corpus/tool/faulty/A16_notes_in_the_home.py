"""Planted: every session of a user writes to the same file, which nobody asked for."""

import json
from pathlib import Path

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Notes:
    name = "take_note"
    description = "Takes a note and says how many there are."

    def get_schema(self):
        return {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}

    async def execute(self, input):
        file = Path.home() / ".notes.json"
        notes = json.loads(file.read_text()) if file.exists() else []
        notes.append(str(input.get("note")))
        file.write_text(json.dumps(notes))
        return ToolResult(output=len(notes))


async def mount(coordinator, config):
    return Notes()
