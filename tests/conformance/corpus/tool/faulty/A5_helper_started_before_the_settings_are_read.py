"""Rounds numbers with a helper thread.

Planted: mount starts the thread, and then fails on wrong settings without stopping it.
"""

import queue
import threading

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Round:
    name = "round_number"
    description = "Rounds a number."
    input_schema = {"type": "object", "properties": {"number": {"type": "number"}}, "required": ["number"]}

    def __init__(self):
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="rounder", daemon=True)
        self.thread.start()
        self.digits = 2

    def work(self):
        while (job := self.jobs.get()) is not None:
            job()

    async def execute(self, input):
        number = input.get("number")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return ToolResult(success=False, error={"message": "number has to be a number"})
        return ToolResult(output=round(number, self.digits))

    def close(self):
        self.jobs.put(None)
        self.thread.join(2)


async def mount(coordinator, config):
    tool = Round()
    digits = config.get("digits", 2)
    if not isinstance(digits, int):
        raise ValueError(f"digits has to be a whole number, not {digits!r}")
    tool.digits = digits
    await coordinator.mount("tools", tool)
    return tool.close
