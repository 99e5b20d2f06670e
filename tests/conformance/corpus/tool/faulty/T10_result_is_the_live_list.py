"""Planted: every result holds the same list, which later calls make longer."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Notes:
    name = "notes"
    description = "Takes a note and shows all of them."

    def __init__(self):
        self._notes = []

    def get_schema(self):
        return {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}

    async def execute(self, input):
        note = input.get("note")
        if not isinstance(note, str):
            return ToolResult(success=False, error={"message": "note must be a string"})
        self._notes.append(note)
        return ToolResult(output=self._notes)


async def mount(coordinator, config):
    await coordinator.mount("tools", Notes())
