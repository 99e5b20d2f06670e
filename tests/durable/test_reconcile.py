"""A call that was running when its process died: its tool finds out whether it had its effect, before anything else happens."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier.contracts import CurrentCall, Done, NotDone, Unknown, call_scope, current_call
from amplifier.models import ToolResult
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    eventually,
    hanging,
    open_engine,
    tool,
    working,
)
from tests.durable.worker_processes import worker_processes


def reconciling(found, calls, asked):
    """A tool that is not repeatable and returns, raises or hangs in this way."""
    pay = tool("pay", lambda given: calls.append("paid") or "paid now", repeatable=False)

    async def reconcile(given, call):
        asked.append((given, call.call_id, call.idempotency_key))
        if found == "hangs":
            await anyio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        return found

    pay.reconcile = reconcile  # type: ignore[attr-defined]  # optional member of the contract
    return pay


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    ("found", "result", "times"),
    [
        pytest.param(Done("receipt 17"), "receipt 17", 0, id="done"),
        pytest.param(
            Done(ToolResult(success=False, error={"message": "no money"})),
            "no money",
            0,
            id="failed",
        ),
        pytest.param(NotDone(), "paid now", 1, id="not done"),
        pytest.param(Unknown(), "whether it had an effect is not known", 0, id="unknown"),
        pytest.param("paid", "whether it had an effect is not known", 0, id="another type"),
        pytest.param(
            LookupError("the bank"), "whether it had an effect is not known", 0, id="raises"
        ),
        pytest.param("hangs", "whether it had an effect is not known", 0, id="overruns"),
    ],
)
async def test_running_call_is_reconciled(engine, found, result, times):
    calls: list[str] = []
    asked: list[Any] = []
    hang, begun = hanging("pay", repeatable=False)
    limits = {
        "orchestrator": {"module": "loop-basic", "config": {"tool_timeout": 2.0}},
        "context": "context-simple",
    }
    turn = await engine.start("s", "go")
    async with working(engine, agent(answering([("pay", {"sum": 5})]), hang, session=limits)):
        await begun.wait()
    async with working(
        engine, agent(answering("Done."), reconciling(found, calls, asked), session=limits)
    ):
        assert await engine.result(turn) == "Done."
    [content] = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert result in content
    assert len(calls) == times
    assert [given for given, *_ in asked] == [{"sum": 5}]


def test_idempotency_key_tells_sessions_and_turns_apart():
    plain = CurrentCall(kind="tool", session_id="s", turn_number=1, iteration=1, call_id="call_1")
    keys = {
        plain.idempotency_key,
        CurrentCall(
            kind="tool", session_id="t", turn_number=1, iteration=1, call_id="call_1"
        ).idempotency_key,
        CurrentCall(
            kind="tool", session_id="s", turn_number=2, iteration=1, call_id="call_1"
        ).idempotency_key,
        CurrentCall(
            kind="tool", session_id="s", turn_number=1, iteration=1, call_id="call_2"
        ).idempotency_key,
    }
    assert len(keys) == 4
    assert all(len(key) == 64 for key in keys)


def test_child_idempotency_key_follows_parent_call():
    keys = []
    for session, call in (
        ("s-new-id", "task"),
        ("s-another-id", "task"),
        ("s-another-id", "other"),
    ):
        outer = CurrentCall(kind="tool", session_id="s", turn_number=1, iteration=1, call_id=call)
        inner = CurrentCall(
            kind="tool", session_id=session, turn_number=1, iteration=1, call_id="call_1"
        )
        with call_scope(outer), call_scope(inner):
            found = current_call()
        assert found is not None
        keys.append(found.idempotency_key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("session", "result"), [("paid", "paid before"), ("unpaid", "paid")])
async def test_payment_is_made_once(kind, place, tmp_path, anyio_backend_name, session, result):
    """It is killed between the effect and its acknowledgement, or between the beginning and the effect."""
    async with open_engine(kind, place, lease=2.0) as engine:
        with (
            worker_processes(kind, anyio_backend_name, place, tmp_path, "pays") as workers,
            anyio.fail_after(100),
        ):
            turn = await engine.start(session, "pay")
            await anyio.to_thread.run_sync(workers.start)
            await eventually(anyio.Path(tmp_path / f"{session}.begun").exists)
            await anyio.to_thread.run_sync(workers.wait_until_gone, workers.living.pop())
            await anyio.to_thread.run_sync(workers.start)
            assert await engine.result(turn) == "Paid."
            [content] = [
                m["content"] for m in await engine.messages(session) if m["role"] == "tool"
            ]
    assert content == result
    assert len((tmp_path / f"{session}.effects").read_text().splitlines()) == 1
