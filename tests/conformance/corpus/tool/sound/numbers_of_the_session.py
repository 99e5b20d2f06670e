"""Numbers topics in the order in which they are first mentioned, in each session from one."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Number:
    name = "number_topic"
    description = "Returns the number of a topic; new topics get the next one."
    input_schema = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}

    def __init__(self):
        self.numbers = {}

    async def execute(self, input):
        topic = input.get("topic")
        if not isinstance(topic, str):
            return ToolResult(success=False, error={"message": "topic has to be a string"})
        return ToolResult(output=self.numbers.setdefault(topic, len(self.numbers) + 1))


async def mount(coordinator, config):
    await coordinator.mount("tools", Number())
