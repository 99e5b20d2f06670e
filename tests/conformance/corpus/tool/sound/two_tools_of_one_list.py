"""Two tools over one list that belongs to the session; a structured mount that mounts both."""

from contextlib import asynccontextmanager

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Add:
    name = "list_add"
    description = "Adds an item to the list and returns its length."
    input_schema = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}

    def __init__(self, items):
        self.items = items

    async def execute(self, input):
        item = input.get("item")
        if not isinstance(item, str):
            return ToolResult(success=False, error={"message": "item has to be a string"})
        self.items.append(item)
        return ToolResult(output=len(self.items))


class Show:
    name = "list_show"
    description = "Returns the items of the list."
    input_schema = {"type": "object", "properties": {}, "additionalProperties": True}

    def __init__(self, items):
        self.items = items

    async def execute(self, input):
        return ToolResult(output=list(self.items))


@asynccontextmanager
async def mount(coordinator, config):
    items = []
    for tool in (Add(items), Show(items)):
        await coordinator.mount("tools", tool)
    yield
    items.clear()
