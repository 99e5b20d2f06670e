"""Makes a ticket; every property of the schema is a field of the dataclass that reads the input, and others are refused."""

from dataclasses import asdict, dataclass, field, fields

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


@dataclass
class Ticket:
    title: str
    urgent: bool = False
    labels: list[str] = field(default_factory=list)


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
        names = {each.name for each in fields(Ticket)}
        for key in input:
            if key not in names:
                return ToolResult(success=False, error={"message": f"a ticket has no {key!r}"})
        title, urgent = input.get("title"), input.get("urgent", False)
        if not isinstance(title, str) or not title or not isinstance(urgent, bool):
            return ToolResult(success=False, error={"message": "title is a text, urgent is true or false"})
        labels = input.get("labels", [])
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            return ToolResult(success=False, error={"message": "labels is a list of texts"})
        return ToolResult(output=asdict(Ticket(title, urgent, labels)))


async def mount(coordinator, config):
    await coordinator.mount("tools", MakeTicket())
