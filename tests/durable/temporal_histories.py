"""Histories of Temporal's workflows: what happens in them, and how they are recorded: ``python -m tests.durable.temporal_histories``.

The recorded ones, in a numbered folder of ``histories`` for each time that the commands have changed, are kept: newer code has to be able
to go on with turns that older code began.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from temporalio.client import WorkflowHistory

from amplifier.durable import TurnStoppedError
from amplifier.durable._temporal_workflows import session_workflow_id, turn_workflow_id
from amplifier.models import HookResult
from tests._support.engine_servers import temporal
from tests._support.tree import ROOT
from tests.durable.agents import agent, answering, open_engine, tool, until, working

RECORDED = Path(__file__).parent / "histories"


async def _ask(event: str, data: dict[str, Any]) -> HookResult:
    if data["tool_name"] == "pay":
        return HookResult(action="ask_user", approval_prompt="May I pay?", approval_options=["Allow", "Deny"])
    return HookResult(action="continue")


async def _mount_question(coordinator: Any, config: dict[str, Any]) -> None:
    coordinator.hooks.register("tool:pre", _ask, name="ask")


def _shop_agent(provider: Any, wait: Any, *, is_wait_repeatable: bool = True) -> Any:
    """An agent with the three tools that every part of the history needs."""
    return agent(
        provider,
        tool("look", lambda given: "two shelves", repeatable=True),
        tool("wait", wait, repeatable=is_wait_repeatable),
        tool("pay", lambda given: "paid"),
        hooks={"hooks-ask": _mount_question},
    )


async def make_histories(place: str) -> dict[str, WorkflowHistory]:
    """The histories of a session, of a turn that was handed over and answered, and of one that was stopped."""
    begun = anyio.Event()

    async def hang(given: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    first = _shop_agent(answering([("look", {}), ("wait", {})]), hang)
    second = _shop_agent(answering([("pay", {})], "Done.", [("wait", {})]), lambda given: "waited")
    third = _shop_agent(answering([("wait", {})]), hang, is_wait_repeatable=False)
    async with open_engine("temporal", place) as engine:
        answered = await engine.start("s", "look around, then pay")
        async with working(engine, first):
            await begun.wait()
        async with working(engine, second):
            question = (await until(engine, answered, lambda status: status.questions)).questions[0]
            await engine.approve(answered, question.question_id, "Allow")
            assert await engine.result(answered) == "Done."
        begun = anyio.Event()
        stopped = await engine.start("s", "wait")
        async with working(engine, third):
            await begun.wait()
            await engine.stop(stopped, reason="enough")
            with suppress(TurnStoppedError):
                await engine.result(stopped)
        assert len(await engine.messages("s")) == 10
        return await _histories_of(engine, answered, stopped)


async def _histories_of(engine: Any, answered: str, stopped: str) -> dict[str, WorkflowHistory]:
    server, queue = engine._turns.server, engine._turns.queue
    ids = {
        "session": session_workflow_id(queue, "s"),
        "answered_turn": turn_workflow_id(queue, answered),
        "stopped_turn": turn_workflow_id(queue, stopped),
    }
    return {
        name: await server.call(server.client.get_workflow_handle(workflow).fetch_history)
        for name, workflow in ids.items()
    }


def main() -> None:
    """Record them into a new folder, without the name and the paths of this machine."""
    folder = RECORDED / str(len(list(RECORDED.iterdir())) + 1)
    folder.mkdir()
    with temporal() as server:
        for name, history in anyio.run(make_histories, f"{server.address}/recorded").items():
            text = history.to_json().replace(socket.gethostname(), "host")
            for place in (str(ROOT), sys.base_prefix):  # in stack traces
                text = text.replace(place, "project")
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            sys.stdout.write(f"{name}: {len(history.events)} events\n")


if __name__ == "__main__":
    main()
