"""Jobs go to a background worker of the session, which answers each submitter through an event of its own.

A cancelled call closes the queue for everybody.
"""

import math
from contextlib import suppress

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Job:
    def __init__(self, numbers):
        self.numbers = numbers
        self.done = anyio.Event()
        self.answer = None


class Statistics:
    name = "statistics"
    description = "Gives count, mean and largest of a list of numbers."

    input_schema = {
        "type": "object",
        "properties": {
            "numbers": {"type": "array", "items": {"type": "number"}},
            "label": {"type": ["string", "null"]},
        },
        "required": ["numbers"],
        "additionalProperties": True,
    }

    def __init__(self):
        self.send, self.receive = anyio.create_memory_object_stream(64)

    async def execute(self, input):
        numbers = input.get("numbers")
        if not isinstance(numbers, list):
            return ToolResult(success=False, error={"message": "numbers must be a list"})
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            return ToolResult(success=False, error={"message": "numbers must hold numbers only"})
        job = Job(list(numbers))
        try:
            await self.send.send(job)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return ToolResult(success=False, error={"message": "closed"})
        try:
            await job.done.wait()
        except BaseException:
            self.send.close()
            raise
        if isinstance(job.answer, str):
            return ToolResult(success=False, error={"message": job.answer})
        label = input.get("label")
        return ToolResult(output={"label": label if isinstance(label, str) else None, **job.answer})

    async def work(self):
        async with self.receive:
            async for job in self.receive:
                job.answer = self.reckon(job.numbers)
                job.done.set()

    @staticmethod
    def reckon(numbers):
        try:
            if not numbers:
                return {"count": 0, "mean": None, "largest": None}
            mean = math.fsum(numbers) / len(numbers)
            if not math.isfinite(mean):
                return "too large"
            return {"count": len(numbers), "mean": mean, "largest": max(numbers)}
        except (OverflowError, ValueError) as error:
            return str(error)


async def mount(coordinator, config):
    tool = Statistics()
    coordinator.start_soon(tool.work, name="statistics")
    await coordinator.mount("tools", tool, name="statistics")

    async def cleanup():
        with suppress(anyio.ClosedResourceError):
            await tool.send.aclose()

    return cleanup
