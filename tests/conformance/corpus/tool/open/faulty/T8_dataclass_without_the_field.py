"""Makes a ticket.

Planted: "labels" in the schema has no counterpart in the dataclass that reads the input.
"""

from dataclasses import asdict, dataclass, fields

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


@dataclass
class Ticket:
    title: str
    urgent: bool = False


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1},
        "urgent": {"type": "boolean"},
        "labels": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title"],
}


class MakeTicket:
    name = "make_ticket"
    description = "Makes a ticket with a title."
    input_schema = SCHEMA

    async def execute(self, input):
        names = {field.name for field in fields(Ticket)}
        for key in input:
            if key not in names:
                return ToolResult(success=False, error={"message": f"a ticket has no {key!r}"})
        title, urgent = input.get("title"), input.get("urgent", False)
        if not isinstance(title, str) or not title or not isinstance(urgent, bool):
            return ToolResult(success=False, error={"message": "title is a text, urgent is true or false"})
        return ToolResult(output=asdict(Ticket(title, urgent)))


async def mount(coordinator, config):
    await coordinator.mount("tools", MakeTicket())
