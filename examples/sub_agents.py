"""Sub-agents: a model hands tasks to agents of the plan, and a program forks a session by itself.

    python examples/sub_agents.py

A sub-agent is a child session. It lives inside the tool call (or inside its ``async with`` block) that made it: whatever ends the
parent's turn ends the child first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio

from amplifier import AmplifierSession
from amplifier.models import ToolFinished

HERE = str(Path(__file__).resolve().parent)
# It answers by fixed rules. provider-anthropic is a language model.
OFFLINE = {"module": "provider-offline"}

# The decisions of a model: two readers at once, then an answer.
SCRIPT = [
    {
        "text": "I send two readers.",
        "tool_calls": [
            {
                "name": "task",
                "arguments": {"agent": "reader", "instruction": "count the lines in agent.yaml"},
            },
            {
                "name": "task",
                "arguments": {"agent": "reader", "instruction": "list the Python files"},
            },
        ],
    },
    "Both have reported.",
]

PLAN: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": [{"module": "provider-mock", "config": {"responses": SCRIPT}}],
    "tools": [{"module": "tool-task", "config": {"max_parallel": 2, "timeout": 60}}],
    "agents": {
        "reader": {  # an overlay of this plan
            "description": "Reads files and reports what they say.",
            "providers": [OFFLINE],
            "tools": [
                {
                    "module": "tool-filesystem",
                    "config": {"allowed_paths": [HERE], "read_only": True},
                }
            ],
        }
    },
}


async def delegate() -> None:
    """The model calls the tool `task`; each call is a child session of its own."""
    async with AmplifierSession(PLAN, session_id="parent") as session:
        async with session.stream("What is in this folder?") as events:
            async for event in events:
                if event.name == "task:agent_spawned":
                    print(
                        f"  spawned {event.data['agent']}, a child of {event.data['parent_session_id']}"
                    )
                elif isinstance(event, ToolFinished):
                    response = event.data["result"]["output"]["response"]
                    print(f"  reader: {response.splitlines()[0]}")
        print(f"  agent: {events.result}")


async def fork() -> None:
    """The program makes the child: the parent's plan with an overlay."""
    reader = PLAN["agents"]["reader"]
    async with AmplifierSession(PLAN, session_id="parent") as session:
        async with session.fork(
            {"providers": reader["providers"], "tools": reader["tools"]}, session_id="child"
        ) as child:
            answer = await child.execute("count the files")
            print(f"  {child.session_id} of {child.parent_id}: {answer.splitlines()[0]}")
        print(
            f"  {child.session_id} is {child.statistics().state}, {session.session_id} is {session.statistics().state}"
        )


async def main(backend: str) -> None:
    print(f"── tasks for sub-agents, on {backend}")
    await delegate()
    print("── a fork")
    await fork()


if __name__ == "__main__":
    for name in sys.argv[1:] or ["asyncio", "trio"]:
        anyio.run(main, name, backend=name)
