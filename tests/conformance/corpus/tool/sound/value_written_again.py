"""Stores a value under a name; writing it again changes nothing, so every interrupted call may run."""

from pathlib import Path

from amplifier import ToolResult
from amplifier.contracts import NotDone

__amplifier_module_type__ = "tool"


class Remember:
    name = "remember"
    description = "Stores a value, which replaces the one before."

    def __init__(self, place: Path) -> None:
        self._place = place

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"value": {"type": "integer"}},
            "required": ["value"],
        }

    async def execute(self, input):
        value = input.get("value")
        if not isinstance(value, int) or isinstance(value, bool):
            return ToolResult(success=False, error={"message": "value must be an integer"})
        new = self._place.with_suffix(".new")
        new.write_text(f"{value}\n")
        new.replace(self._place)
        return ToolResult(output=value)

    async def reconcile(self, input, call):
        return NotDone()


async def mount(coordinator, config):
    await coordinator.mount("tools", Remember(Path("value").absolute()))
