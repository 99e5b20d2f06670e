"""Nothing it says is the same twice: ids, times, a running number."""

import datetime
import itertools
import uuid

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Ticket:
    name = "open_ticket"
    description = "Opens a ticket."

    def __init__(self):
        self._numbers = itertools.count(1)

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "summary": {"type": "string", "maxLength": 200},
                "priority": {"type": ["integer", "null"], "minimum": 1, "maximum": 5},
            },
            "required": ["summary"],
        }

    async def execute(self, input):
        summary, priority = input.get("summary"), input.get("priority")
        if not isinstance(summary, str) or len(summary) > 200:
            return ToolResult(success=False, error={"message": "summary must be a string of at most 200 characters"})
        if priority is not None and (type(priority) is not int or not 1 <= priority <= 5):
            return ToolResult(success=False, error={"message": f"priority must be 1 to 5, not {priority!r}"})
        await anyio.sleep(0.001)
        return ToolResult(
            output={
                "id": str(uuid.uuid4()),
                "number": next(self._numbers),
                "opened": datetime.datetime.now(datetime.UTC).isoformat(),
                "summary": summary,
            }
        )


async def mount(coordinator, config):
    await coordinator.mount("tools", Ticket())
