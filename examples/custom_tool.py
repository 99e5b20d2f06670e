"""A tool of your own: `word_count`, which keeps the tool contract, also when it is cancelled at any await.

    python examples/custom_tool.py                          # an agent uses it
    amplifier module validate examples/custom_tool.py       # does it keep its contract?
    pytest examples/test_custom_tool.py                     # the same, one test for each clause and backend

The tutorial "Your first tool" leads here, from a package with a planted fault.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from amplifier import AmplifierSession, ModuleLoader, ToolResult

__amplifier_module_type__ = "tool"


class WordCountTool:
    """Counts the words of a text, one text at a time, and keeps a total."""

    name = "word_count"
    description = "Counts the words of a text and returns the total so far. Give it the text."

    def __init__(self) -> None:
        self._one_at_a_time = anyio.Lock()
        self._total = 0

    def get_schema(self) -> dict[str, Any]:
        """Return the schema of the input."""
        return {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The text to count."}},
            "required": ["text"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Count the words, and return a failure as a result."""
        text = input.get("text")
        if not isinstance(text, str):
            message = f"text: expected a string, got {text!r}"
            return ToolResult(success=False, error={"message": message})
        async with self._one_at_a_time:
            words = await anyio.to_thread.run_sync(count, text)
            self._total += words
            return ToolResult(success=True, output={"words": words, "total": self._total})


def count(text: str) -> int:
    """Count words in a worker thread, because a long text would block the event loop."""
    return len(text.split())


async def mount(coordinator: Any, config: dict[str, Any]) -> None:
    """Register the tool."""
    coordinator.mount("tools", WordCountTool())


PLAN = {
    "session": {"orchestrator": "loop-basic", "context": "context-simple"},
    "providers": [
        {
            "module": "provider-mock",  # plays a script; a real model decides for itself
            "config": {
                "responses": [
                    {
                        "text": "I count both.",
                        "tool_calls": [
                            {"name": "word_count", "arguments": {"text": "To be, or not to be"}},
                            {"name": "word_count", "arguments": {"text": "that is the question"}},
                            {"name": "word_count", "arguments": {"txt": "a misspelt argument"}},
                        ],
                    },
                    "Ten words in all.",
                ]
            },
        }
    ],
    "tools": [{"module": "tool-word-count"}],
}


async def main(backend: str) -> None:
    print(f"── an agent with a tool of its own, on {backend}")
    async with AmplifierSession(PLAN, ModuleLoader(modules={"tool-word-count": mount})) as session:
        answer = await session.execute("How many words are in these lines?")
        context = session.coordinator.get("context")
        assert context is not None  # the plan names one
        for message in await context.get_messages():
            if message["role"] == "tool":
                print(f"  {message['name']}: {message['content']}")
        print(f"  agent: {answer}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["asyncio", "trio"]:
        anyio.run(main, name, backend=name)
