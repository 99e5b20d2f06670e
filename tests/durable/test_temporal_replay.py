"""The workflows make the same commands again from a history: from one that was just made, and from those that older code made."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import anyio.to_thread
import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from amplifier.durable._temporal_workflows import SessionWorkflow, TurnWorkflow
from amplifier.durable.temporal import _sdk_runtime
from tests.durable.agents import MAY_LEAVE
from tests.durable.temporal_histories import RECORDED, make_histories

pytestmark = [pytest.mark.slow, MAY_LEAVE, pytest.mark.parametrize("kind", ["temporal"])]


def replay(history: WorkflowHistory) -> None:
    replayer = Replayer(
        workflows=[SessionWorkflow, TurnWorkflow], workflow_runner=UnsandboxedWorkflowRunner(), runtime=_sdk_runtime()
    )
    asyncio.run(replayer.replay_workflow(history))


async def test_new_histories_are_replayed_and_show_every_call_by_name(kind, place):
    histories = await make_histories(place)
    for history in histories.values():
        await anyio.to_thread.run_sync(replay, history)
    signals = [
        event.workflow_execution_signaled_event_attributes.signal_name for event in histories["answered_turn"].events
    ]
    calls = [name for name in signals if name.startswith(("model", "tool"))]
    assert Counter(calls) == {"model": 3, "tool look": 1, "tool wait": 1, "tool pay": 1}


@pytest.mark.parametrize("number", ["1"])
@pytest.mark.parametrize("name", ["session", "answered_turn", "stopped_turn"])
def test_recorded_histories_are_replayed(kind, name, number):
    replay(WorkflowHistory.from_json(name, (RECORDED / number / f"{name}.json").read_text()))


def test_a_workflow_that_makes_other_commands_is_noticed(kind, monkeypatch):
    monkeypatch.setattr(TurnWorkflow, "_tell_worker", lambda self, news: None)
    with pytest.raises(NondeterminismError):
        replay(WorkflowHistory.from_json("stopped_turn", (RECORDED / "1" / "stopped_turn.json").read_text()))
