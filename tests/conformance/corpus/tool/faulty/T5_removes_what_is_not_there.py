"""Planted: removing something a second time raises; that "remove" exists is said in the description only."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Labels:
    name = "labels"
    description = "Manages labels: create or remove an id."

    def __init__(self):
        self._labels = {}

    def get_schema(self):
        text = {"type": "string"}
        return {"type": "object", "properties": {"action": text, "id": text}, "required": ["action"]}

    async def execute(self, input):
        action, label = input.get("action"), str(input.get("id"))
        if action == "create":
            self._labels[label] = True
            return ToolResult(output=sorted(self._labels))
        if action == "remove":
            del self._labels[label]
            return ToolResult(output=sorted(self._labels))
        return ToolResult(success=False, error={"message": "action must be create or remove"})


async def mount(coordinator, config):
    await coordinator.mount("tools", Labels())
