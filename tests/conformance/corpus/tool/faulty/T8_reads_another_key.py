"""Planted: the schema says query, the tool reads q."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Search:
    name = "search_notes"
    description = "Finds notes."
    _NOTES = ["buy milk", "call mother"]

    def get_schema(self):
        return {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    async def execute(self, input):
        query = input.get("q")
        if not isinstance(query, str):
            return ToolResult(success=False, error={"message": "nothing to search for"})
        return ToolResult(output=[note for note in self._NOTES if query in note])


async def mount(coordinator, config):
    await coordinator.mount("tools", Search())
