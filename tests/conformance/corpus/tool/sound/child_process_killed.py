"""Runs a slow child process, and kills and reaps it on every way out."""

import json
import subprocess
import sys

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

PROGRAM = "import json, sys, time; text = json.load(sys.stdin); time.sleep(0.2); json.dump(text.title(), sys.stdout)"


class Title:
    name = "title_case"
    description = "Puts a text into title case, in a process of its own."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 1000}},
        "required": ["text"],
    }

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str) or len(text) > 1000:
            return ToolResult(success=False, error={"message": "text has to be a string of up to 1000 characters"})
        try:
            with anyio.fail_after(10):
                done = await anyio.run_process(
                    [sys.executable, "-I", "-S", "-c", PROGRAM],
                    input=json.dumps(text).encode(),
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
        except TimeoutError:
            return ToolResult(success=False, error={"message": "it took more than 10 seconds"})
        except OSError as error:
            return ToolResult(success=False, error={"message": f"could not start: {error}"})
        if done.returncode:
            return ToolResult(success=False, error={"message": f"the program ended with {done.returncode}"})
        return ToolResult(output=json.loads(done.stdout))


async def mount(coordinator, config):
    await coordinator.mount("tools", Title())
