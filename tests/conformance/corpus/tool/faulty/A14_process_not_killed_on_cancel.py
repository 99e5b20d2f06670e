"""Waits in a child process and reports its exit code.

Planted: the process is awaited without a context manager; a cancelled call leaves it running.
"""

import sys
from subprocess import DEVNULL

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Delay:
    name = "delay"
    description = "Waits for some seconds in another process."
    input_schema = {
        "type": "object",
        "properties": {"seconds": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["seconds"],
    }

    async def execute(self, input):
        seconds = input.get("seconds")
        if isinstance(seconds, float) and seconds.is_integer():
            seconds = int(seconds)
        if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= 3:
            return ToolResult(success=False, error={"message": "seconds has to be a number from 1 to 3"})
        code = f"import time; time.sleep({seconds})"
        process = await anyio.open_process(
            [sys.executable, "-I", "-S", "-c", code], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        status = await process.wait()
        return ToolResult(output={"status": status})


async def mount(coordinator, config):
    await coordinator.mount("tools", Delay())
