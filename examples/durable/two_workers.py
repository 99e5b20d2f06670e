"""Two worker processes share the turns; one is killed with SIGKILL in the middle of its turn, and the other one goes on with it.

    python examples/durable/two_workers.py [asyncio|trio] [local|dbos|temporal]

For ``temporal`` a server has to run: ``temporal server start-dev``, or the one whose address is in TEMPORAL_ADDRESS.

The model is a script. The tool ``ship`` takes a while; it is declared as repeatable because it uses the id of its call as idempotency key.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from amplifier import AmplifierSession, ChatRequest, ChatResponse, ModuleLoader, TextBlock, ToolCall, ToolResult
from amplifier.contracts import current_call
from amplifier.durable import DurableEngine, open_local_engine
from amplifier.testing import MockProvider

ORDERS = ("books", "lamps", "chairs")


def open_engine(kind: str, folder: Path) -> AbstractAsyncContextManager[DurableEngine]:
    """The line in which an application chooses its engine; a Postgres URL in place of the file makes it many machines."""
    if kind == "temporal":
        from amplifier.durable.temporal import open_temporal_engine  # noqa: PLC0415 — an extra

        address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
        return open_temporal_engine(address, task_queue=folder.name, lease=5.0)
    if kind == "dbos":
        from amplifier.durable.dbos import open_dbos_engine  # noqa: PLC0415 — an extra

        return open_dbos_engine(f"sqlite:///{folder / 'dbos.sqlite'}", lease=5.0)
    return open_local_engine(folder / "turns.db", lease=5.0)


# ── the agent ──


class Ship:
    name = "ship"
    description = "Ships an order."
    repeatable = True

    def __init__(self, log: Path) -> None:
        self._log = log

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        call = current_call()
        assert call is not None
        with self._log.open("a") as log:
            log.write(f"{os.getpid()} {call.session_id} {call.call_id}\n")
        await anyio.sleep(0.5)
        return ToolResult(output=f"{input['order']} shipped under {call.call_id}")


def decide(request: ChatRequest) -> ChatResponse:
    """What a model would decide: ship one order after another, by what the conversation has so far."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done == len(ORDERS):
        return ChatResponse(content=[TextBlock(text="Everything is on its way.")])
    call = ToolCall(id=f"order-{done}", name="ship", arguments={"order": ORDERS[done]})
    return ChatResponse(content=[], tool_calls=[call])


def make_session(session_id: str, folder: Path) -> AmplifierSession:
    async def mount_model(coordinator: Any, config: dict[str, Any]) -> Any:
        return MockProvider([decide] * (len(ORDERS) + 1))

    async def mount_tool(coordinator: Any, config: dict[str, Any]) -> Any:
        return Ship(folder / "calls")

    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-orders"],
        "tools": ["tool-ship"],
    }
    loader = ModuleLoader(modules={"provider-orders": mount_model, "tool-ship": mount_tool})
    return AmplifierSession(plan, loader, session_id=session_id)


# ── the processes ──


async def work(kind: str, folder: Path) -> None:
    """A worker."""
    async with open_engine(kind, folder) as engine:
        await engine.work(lambda session_id: make_session(session_id, folder), concurrency=2)


@contextmanager
def worker(backend: str, kind: str, folder: Path) -> Iterator[int]:
    with subprocess.Popen([sys.executable, __file__, backend, kind, str(folder)]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def main(backend: str, kind: str, folder: Path) -> None:
    """The application: starts turns, kills a worker, waits for the answers."""
    async with open_engine(kind, folder) as engine:
        turns = {name: await engine.start(name, "ship everything") for name in ("anna", "bert")}
        with worker(backend, kind, folder) as first, worker(backend, kind, folder) as second:
            names = {first: "first", second: "second"}
            killed = await victim(engine, turns["anna"], names)
            print(f"anna's turn runs on the {names[killed]} worker, which is killed now")
            os.kill(killed, signal.SIGKILL)
            began = time.monotonic()
            for name, turn in turns.items():
                answer = await engine.result(turn)
                print(f"{name}: {answer} (attempt {(await engine.status(turn)).attempt})")
            print(f"all answers {time.monotonic() - began:.1f} s later")
        for message in await engine.messages("anna"):
            if message["role"] == "tool":
                print(f"  {message['content']}")
        calls = [line.split()[1:] for line in (folder / "calls").read_text().splitlines()]
        print(f"calls of anna's: {sum(session == 'anna' for session, _ in calls)}, orders: {len(ORDERS)}")


async def victim(engine: DurableEngine, turn_id: str, processes: dict[int, str]) -> int:
    """The process that runs a turn, once the turn has its first result."""
    async for event in engine.watch(turn_id):
        if event.name == "tool:post":
            break
    runs_on = (await engine.status(turn_id)).worker or ""
    return next(process for process in processes if f"-{process}-" in runs_on)


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    kind = sys.argv[2] if len(sys.argv) > 2 else "local"
    if len(sys.argv) > 3:
        anyio.run(work, kind, Path(sys.argv[3]), backend=backend)
    else:
        with tempfile.TemporaryDirectory() as name:
            anyio.run(main, backend, kind, Path(name), backend=backend)
