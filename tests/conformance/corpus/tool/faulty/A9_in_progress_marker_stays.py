"""Builds a report per topic, one at a time for each topic.

Planted: a cancelled build leaves its topic marked as in progress; later calls for it are refused for ever.
"""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Report:
    name = "build_report"
    description = "Builds a report about a topic."
    input_schema = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}

    def __init__(self):
        self.in_progress = {}

    async def execute(self, input):
        topic = input.get("topic")
        if not isinstance(topic, str):
            return ToolResult(success=False, error={"message": "topic has to be a string"})
        for _ in range(100):
            if topic not in self.in_progress:
                break
            await anyio.sleep(0.01)
        else:
            return ToolResult(success=False, error={"message": "a report about this topic is in progress"})
        self.in_progress[topic] = True
        await anyio.sleep(0.01)
        report = f"Report about {topic}"
        del self.in_progress[topic]
        return ToolResult(output=report)


async def mount(coordinator, config):
    await coordinator.mount("tools", Report())
