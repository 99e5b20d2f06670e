"""State of its own, several actions, and keys that only some actions need, which a schema need not say."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Notebook:
    name = "notebook"
    description = "Keeps notes: add (title, text), show (title), delete (title), list."
    input_schema = {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": ["add", "show", "delete", "list"]},
            "title": {"type": "string"},
            "text": {"type": "string", "default": ""},
        },
        "required": ["action"],
        "additionalProperties": False,
    }

    def __init__(self):
        self._notes = {}
        self._lock = anyio.Lock()

    async def execute(self, input):
        action, title, text = input.get("action"), input.get("title"), input.get("text", "")
        if action == "list":
            return ToolResult(output=sorted(self._notes))
        if action not in ("add", "show", "delete"):
            return ToolResult(success=False, error={"message": f"unknown action {action!r}"})
        if not isinstance(title, str) or not title:
            return ToolResult(success=False, error={"message": f"{action} needs a title"})
        async with self._lock:
            await anyio.sleep(0)
            if action == "add" and isinstance(text, str):
                self._notes[title] = text
                return ToolResult(output=f"{len(self._notes)} notes")
            if title not in self._notes:
                return ToolResult(success=False, error={"message": f"no note called {title!r}"})
            if action == "delete":
                del self._notes[title]
                return ToolResult(output="deleted")
            return ToolResult(output={"title": title, "text": self._notes[title]})


async def mount(coordinator, config):
    await coordinator.mount("tools", Notebook())

    async def cleanup():
        pass

    return cleanup
