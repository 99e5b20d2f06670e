"""Sorts words in another process that takes a while.

Planted: the worker thread is abandoned on cancellation, and its child process goes on for two seconds.
"""

import json
import subprocess
import sys

import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

PROGRAM = """
import json, sys, time
words = json.loads(sys.argv[1])
print(json.dumps(sorted(words)), flush=True)
time.sleep(float(sys.argv[2]))
"""


class SlowSort:
    name = "slow_sort"
    description = "Sorts words in another process."
    input_schema = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string"}, "maxItems": 100}},
        "required": ["words"],
    }

    def __init__(self, pause):
        self.pause = pause

    def run(self, words):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(words), str(self.pause)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        line = child.stdout.readline()
        child.wait()
        child.stdout.close()
        return json.loads(line)

    async def execute(self, input):
        words = input.get("words")
        if not isinstance(words, list) or len(words) > 100 or not all(isinstance(word, str) for word in words):
            return ToolResult(success=False, error={"message": "words: a list of up to 100 texts"})
        try:
            return ToolResult(output=await anyio.to_thread.run_sync(self.run, words, abandon_on_cancel=True))
        except (OSError, ValueError) as error:
            return ToolResult(success=False, error={"message": str(error)})


async def mount(coordinator, config):
    await coordinator.mount("tools", SlowSort(2))
