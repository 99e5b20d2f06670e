"""The journal of context-persistent: a call that was running when its process died is reconciled by its tool."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import AmplifierSession, ToolResult
from amplifier.contracts import CurrentCall, Done, NotDone, Reconciled, Unknown, current_call
from amplifier.functions import tool
from amplifier.testing import MockProvider
from tests._support.forked import run_forked
from tests._support.tree import ROOT


class Payment:
    """Pays by a line in a file; the process ends right after the line, or right before it."""

    name = "pay"
    description = "Pays."
    repeatable = False

    def __init__(self, file: Path, *, ends: str = "never") -> None:
        self._file = file
        self._ends = ends

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        call = current_call()
        assert call is not None
        if self._ends == "before":
            os._exit(9)
        with self._file.open("a") as file:
            file.write(f"{call.idempotency_key}\n")
        if self._ends == "after":
            os._exit(9)
        return ToolResult(output="paid now")

    async def reconcile(self, input: dict[str, Any], call: CurrentCall) -> Reconciled:  # noqa: A002
        effects = self._file.read_text().splitlines() if self._file.exists() else []
        return Done("paid before") if call.idempotency_key in effects else NotDone()


def make_session(folder: Path, pay: Any, *script: Any) -> AmplifierSession:
    context = {
        "module": "context-persistent",
        "config": {"path": str(folder / "store"), "durable_turns": True},
    }
    plan = {
        "session": {"orchestrator": "loop-basic", "context": context},
        "providers": [MockProvider(list(script))],
        "tools": [pay],
    }
    return AmplifierSession(plan, session_id="s")


def mounted(payment: Payment) -> Any:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        return payment

    return mount


async def pay_and_end(folder: str, ends: str) -> None:
    """What the process that ends runs."""
    payment = Payment(Path(folder) / "effects", ends=ends)
    async with make_session(Path(folder), mounted(payment), [("pay", {})]) as session:
        await session.execute("pay")


CHILD = """
import sys
import anyio
from tests.modules.test_reconciled_calls import pay_and_end

anyio.run(pay_and_end, *sys.argv[2:], backend=sys.argv[1])
"""


@pytest.mark.parametrize(("ends", "result"), [("after", "paid before"), ("before", "paid now")])
async def test_payment_is_made_once(tmp_path, anyio_backend_name, ends, result):
    command = [sys.executable, "-c", CHILD, anyio_backend_name, str(tmp_path), ends]
    ended = await anyio.to_thread.run_sync(partial(run_forked, command, cwd=ROOT))
    assert ended.returncode == 9
    async with make_session(tmp_path, mounted(Payment(tmp_path / "effects")), "Paid.") as session:
        assert await session.resume_turn() == "Paid."
        messages = await session.coordinator.get("context").get_messages()
    assert [message["content"] for message in messages if message["role"] == "tool"] == [result]
    assert len((tmp_path / "effects").read_text().splitlines()) == 1


async def test_function_is_reconciled_by_another(tmp_path, anyio_backend_name):
    command = [sys.executable, "-c", CHILD, anyio_backend_name, str(tmp_path), "after"]
    await anyio.to_thread.run_sync(partial(run_forked, command, cwd=ROOT))
    asked = []

    async def find_payment(input: dict[str, Any], call: CurrentCall) -> Reconciled:  # noqa: A002
        asked.append(call.idempotency_key)
        return Done({"receipt": 17})

    @tool(repeatable=False, reconcile=find_payment)
    async def pay() -> str:
        """Pay."""
        raise AssertionError

    async with make_session(tmp_path, pay, "Paid.") as session:
        assert await session.resume_turn() == "Paid."
        messages = await session.coordinator.get("context").get_messages()
    assert [message["content"] for message in messages if message["role"] == "tool"] == [
        '{"receipt": 17}'
    ]
    assert asked == (tmp_path / "effects").read_text().splitlines()


def test_sync_reconcile_is_refused():
    with pytest.raises(TypeError, match="an async function of the input and the call"):

        @tool(reconcile=lambda given, call: Unknown())  # type: ignore[call-arg]  # not async
        async def pay() -> str:
            """Pay."""
            return "paid"
