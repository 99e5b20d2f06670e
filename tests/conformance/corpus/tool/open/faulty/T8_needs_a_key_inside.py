"""Planted: an address is optional in the schema of a person, and needed by the tool."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Invite:
    name = "invite"
    description = "Invites a person."

    def get_schema(self):
        text = {"type": "string"}
        person = {"type": "object", "properties": {"name": text, "address": text}, "required": ["name"]}
        return {"type": "object", "properties": {"person": person}, "required": ["person"]}

    async def execute(self, input):
        person = input.get("person")
        if not isinstance(person, dict) or not isinstance(person.get("name"), str):
            return ToolResult(success=False, error={"message": "a person needs a name"})
        if not isinstance(person.get("address"), str):
            return ToolResult(success=False, error={"message": "a person needs an address"})
        return ToolResult(output=f"invited {person['name']}")


async def mount(coordinator, config):
    await coordinator.mount("tools", Invite())
