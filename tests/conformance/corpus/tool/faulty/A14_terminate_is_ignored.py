"""Keeps a helper program busy while it answers.

Planted: on cancellation the helper gets a SIGTERM, which it ignores, and is left alone.
"""

import subprocess
import sys

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

HELPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(2)
"""


class Helper:
    name = "ask_helper"
    description = "Asks a helper program about a topic."
    input_schema = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}

    async def execute(self, input):
        topic = input.get("topic")
        if not isinstance(topic, str):
            return ToolResult(success=False, error={"message": "topic has to be a string"})
        process = await anyio.open_process(
            [sys.executable, "-I", "-S", "-c", HELPER], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            ready = (await process.stdout.receive()).decode().strip()
            await process.wait()
        except BaseException:
            process.terminate()
            raise
        await process.aclose()
        return ToolResult(output={"topic": topic, "helper": ready})


async def mount(coordinator, config):
    await coordinator.mount("tools", Helper())
