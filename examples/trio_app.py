"""Agents in a trio application: workers in a nursery, a time limit for turns, a cancel scope.

    python examples/trio_app.py

Nothing here is special to agents. A session is an async context manager, a turn is an awaitable,
and both end when the cancel scope around them does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from amplifier import AmplifierSession


def plan(provider: dict[str, Any]) -> dict[str, Any]:
    """An agent that reads the files beside this one."""
    here = str(Path(__file__).resolve().parent)
    return {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [provider],
        "tools": [
            {"module": "tool-filesystem", "config": {"allowed_paths": [here], "read_only": True}}
        ],
    }


# provider-offline answers by fixed rules. provider-anthropic is a language model.
QUICK = plan({"module": "provider-offline"})
STUCK = plan(
    {"module": "provider-mock", "config": {"responses": [{"text": "At last!", "delay": 3600}]}}
)

QUESTIONS = [
    "read agent.yaml",
    "list the Python files",
    "count the lines in trio_app.py",
    "count the files",
]
TURN_SECONDS = 3


async def worker(
    name: str,
    plan: dict[str, Any],
    questions: trio.MemoryReceiveChannel[str],
    answers: trio.MemorySendChannel[tuple[str, str, str]],
    task_status: trio.TaskStatus[None],
) -> None:
    """Answer questions until there are no more. Give up on a turn that takes too long."""
    async with AmplifierSession(plan) as session, questions, answers:
        task_status.started()
        async for question in questions:
            answer = f"gave up after {TURN_SECONDS} seconds"
            with trio.move_on_after(TURN_SECONDS):
                answer = await session.execute(question)
            await answers.send((name, question, answer))


async def ask_three() -> None:
    """Run three sessions side by side. The model of one of them doesn't answer."""
    ask, questions = trio.open_memory_channel[str](len(QUESTIONS))
    send, answers = trio.open_memory_channel[tuple[str, str, str]](0)
    async with trio.open_nursery() as nursery:
        for name, agent in (("ann", QUICK), ("ben", QUICK), ("cleo", STUCK)):
            await nursery.start(worker, name, agent, questions.clone(), send.clone())
        questions.close()
        send.close()
        async with ask:
            for question in QUESTIONS:
                await ask.send(question)
        async for name, question, answer in answers:
            print(f"  {name}: {question} → {answer.splitlines()[0]}")


async def stop_in_the_middle() -> None:
    """Cancel a whole session. The model call, the turn and the session end in this order."""
    with trio.CancelScope() as stop:
        async with AmplifierSession(STUCK) as session, session.stream("take an hour") as events:
            async for event in events:
                print(f"  {event.name}")
                if event.name == "provider:request":
                    stop.cancel()
    turn, state = session.status.status, session.statistics().state
    print(f"  stopped: {stop.cancelled_caught}; turn {turn}, session {state}")


async def main() -> None:
    print("── three sessions in a nursery")
    await ask_three()
    print("── one session, stopped from outside")
    await stop_in_the_middle()


if __name__ == "__main__":
    trio.run(main)
