"""Runs a small program on the input and gives back what it printed.

Takes five words, where the schema allows a thousand.
"""

import json
import sys

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

PROGRAM = "import json,sys; words = json.load(sys.stdin); print(json.dumps({'words': sorted(words), 'n': len(words)}))"


class SortTool:
    name = "sort_words"
    description = "Sorts words in another process."
    input_schema = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string"}, "maxItems": 1000}},
        "required": ["words"],
    }

    def __init__(self, seconds):
        self.seconds = seconds

    async def execute(self, input):
        words = input.get("words")
        if not isinstance(words, list) or len(words) > 5 or not all(isinstance(word, str) for word in words):
            return ToolResult(success=False, error={"message": "words: a list of up to 1000 texts"})
        try:
            with anyio.fail_after(self.seconds):
                done = await anyio.run_process(
                    [sys.executable, "-I", "-S", "-c", PROGRAM], input=json.dumps(words).encode(), check=False
                )
        except TimeoutError:
            return ToolResult(success=False, error={"message": "took too long"})
        except OSError as error:
            return ToolResult(success=False, error={"message": f"could not start: {error}"})
        if done.returncode:
            return ToolResult(success=False, error={"message": done.stderr.decode(errors="replace")[-300:]})
        return ToolResult(success=True, output=json.loads(done.stdout))


async def mount(coordinator, config):
    tool = SortTool(config.get("seconds", 20))
    await coordinator.mount("tools", tool, name=tool.name)
    return tool
