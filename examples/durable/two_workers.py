"""A worker is killed in the middle of a payment. Another one goes on, finds the payment in the bank's book, and doesn't pay twice.

    python examples/durable/two_workers.py [asyncio|trio] [postgresql://user:password@host/database]

With Postgres two workers share the turns from the beginning. Without it, the turns are in a file, which has one worker process, and the
second one is started when the first is dead. The model is a script.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio

from amplifier import (
    AmplifierSession,
    ChatRequest,
    ChatResponse,
    ModuleLoader,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.contracts import CurrentCall, Done, NotDone, Reconciled, current_call
from amplifier.durable import DurableEngine, open_engine
from amplifier.testing import MockProvider

ORDERS = ("books", "lamps")

# ── the agent ──


class Pay:
    """Pays by a line in the bank's book. The name of the call is the idempotency key, by which a payment is found again."""

    name = "pay"
    description = "Pays for an order."
    repeatable = False

    def __init__(self, book: Path) -> None:
        self._book = book

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        call = current_call()
        assert call is not None
        with self._book.open("a") as book:
            book.write(f"{call.idempotency_key} {call.session_id} {input['order']}\n")
        # The bank takes its time for the receipt, and a worker that is killed meanwhile never sees it.
        await anyio.sleep(2.0)
        return ToolResult(output=f"{input['order']} paid")

    async def reconcile(self, input: dict[str, Any], call: CurrentCall) -> Reconciled:  # noqa: A002
        payments = self._book.read_text().splitlines() if self._book.exists() else []
        is_paid = any(payment.startswith(call.idempotency_key) for payment in payments)
        return Done(f"{input['order']} paid, found in the book") if is_paid else NotDone()


def decide(request: ChatRequest) -> ChatResponse:
    """Decide as a model would: pay for one order after another, by what the conversation has so far."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done == len(ORDERS):
        return ChatResponse(content=[TextBlock(text="Everything is paid.")])
    call = ToolCall(id=f"order-{done}", name="pay", arguments={"order": ORDERS[done]})
    return ChatResponse(content=[], tool_calls=[call])


def make_session(session_id: str, folder: Path) -> AmplifierSession:
    async def mount_model(coordinator: Any, config: dict[str, Any]) -> Any:
        return MockProvider([decide] * (len(ORDERS) + 1))

    async def mount_tool(coordinator: Any, config: dict[str, Any]) -> Any:
        return Pay(folder / "book")

    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-orders"],
        "tools": ["tool-pay"],
    }
    loader = ModuleLoader(modules={"provider-orders": mount_model, "tool-pay": mount_tool})
    return AmplifierSession(plan, loader, session_id=session_id)


# ── the processes ──


async def work(url: str, folder: Path) -> None:
    """Run turns until the process ends."""
    async with open_engine(url, lease=5.0) as engine:
        await engine.work(lambda session_id: make_session(session_id, folder), concurrency=2)


@contextmanager
def worker(backend: str, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, __file__, backend, url, str(folder)]) as process:
        try:
            yield process
        finally:
            process.kill()


async def main(backend: str, url: str, folder: Path) -> None:
    """Start turns, kill a worker in the middle of a payment, and wait for the answers."""
    is_shared = url.startswith("postgresql")
    async with open_engine(url, lease=5.0) as engine:
        turns = {name: await engine.start(name, "pay for everything") for name in ("anna", "bert")}
        with ExitStack() as workers:
            processes = [
                workers.enter_context(worker(backend, url, folder)) for _ in range(1 + is_shared)
            ]
            killed = await victim(engine, turns["anna"], [process.pid for process in processes])
            await wait_for_payment(folder, "anna")
            print(f"anna's turn runs on worker {killed + 1}, which is killed now")
            processes[killed].kill()
            processes[killed].wait()
            if not is_shared:
                workers.enter_context(worker(backend, url, folder))
            for name, turn in turns.items():
                answer = await engine.result(turn)
                print(f"{name}: {answer} (attempt {(await engine.status(turn)).attempt})")
        for message in await engine.messages("anna"):
            if message["role"] == "tool":
                print(f"  {message['content']}")
        payments = (folder / "book").read_text().splitlines()
        print(f"payments: {len(payments)}, orders: {len(turns) * len(ORDERS)}")


async def victim(engine: DurableEngine, turn_id: str, processes: list[int]) -> int:
    """Return the place of the process that runs a turn, once a tool of the turn is called."""
    async for event in engine.watch(turn_id):
        if event.name == "tool:pre":
            break
    runs_on = (await engine.status(turn_id)).worker or ""
    return next(place for place, process in enumerate(processes) if f"-{process}-" in runs_on)


async def wait_for_payment(folder: Path, session_id: str) -> None:
    """Wait until the first payment of a session is in the bank's book."""
    book = folder / "book"
    while not book.exists() or f" {session_id} " not in book.read_text():  # noqa: ASYNC110 — of another process
        await anyio.sleep(0.01)


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    if len(sys.argv) > 3:
        anyio.run(work, sys.argv[2], Path(sys.argv[3]), backend=backend)
    else:
        with tempfile.TemporaryDirectory() as name:
            url = sys.argv[2] if len(sys.argv) > 2 else f"{name}/turns.db"
            anyio.run(main, backend, url, Path(name), backend=backend)
