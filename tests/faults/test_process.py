"""Faults F97–F99: how a whole process ends. Real interpreters, real signals.

The kernel is a library and installs no signal handlers. It promises that Ctrl-C unwinds in the right order, and that an
application's own handler may call the session's cancellation token.
"""

from __future__ import annotations

import signal

import pytest

from tests._support.child_process import run_child

_ENDING = """
async def hang(event, data):
    print_line("handler hangs")
    try:
        await anyio.sleep_forever()
    finally:
        print_line("handler left")

async def main():
    async with anyio.create_task_group() as group:
        session = agent()
        await session.initialize()
        session.coordinator.hooks.register("x", hang)
        group.start_soon(session.coordinator.hooks.emit, "x", {})
        await anyio.wait_all_tasks_blocked()
        ENDING

try:
    anyio.run(main, backend=backend)
except BaseExceptionGroup as group:
    raise SystemExit(group.exceptions[0].code)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(3)", 3), ("group.cancel_scope.cancel()", 0)]
)
def test_f97_process_ends_under_hanging_handler(backend, ending, code):
    ended = run_child(_ENDING.replace("ENDING", ending), backend)
    assert ended.lines == ["handler hangs", "handler left"]
    assert ended.code == code
    assert ended.errors == ""


_INTERRUPTED = """
async def turn(t):
    try:
        print_line("ready")
        await wait_awake()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
        print_line("turn unwound")

async def cleanup():
    await anyio.sleep(0.01)
    print_line("cleanup")

async def main():
    session = agent(turn, context=mounting(Memory(), cleanup))
    for event in ("cancel:completed", "session:end"):
        session.coordinator.hooks.register(event, lambda event, data: print_line(event))
    try:
        async with session:
            await session.execute("go")
            print_line("the block went on")
    finally:
        print_line(session.status.status)

try:
    anyio.run(main, backend=backend)
except KeyboardInterrupt:
    print_line("KeyboardInterrupt")
    sys.exit(130)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_f98_interrupt_unwinds_turn_then_closes(backend):
    ended = run_child(_INTERRUPTED, backend, signal=signal.SIGINT)
    # Natively cancelled on asyncio, KeyboardInterrupt raised in the turn itself on trio: the order is the same.
    lines = [
        line for line in ended.lines if line not in ("cancel:completed", "cancelled", "failed")
    ]
    assert lines == ["ready", "turn unwound", "session:end", "cleanup", "KeyboardInterrupt"]
    assert ended.code == 130


_TERMINATED = """
import signal

async def turn(t):
    stopped = anyio.Event()
    t.coordinator.cancellation.on_cancel(stopped.set)
    try:
        print_line("ready")
        await (wait_awake(stopped.is_set) if sys.argv[3] == "polite" else wait_awake())
        return "stopped in time"
    finally:
        print_line("turn unwound")

async def cleanup():
    print_line("cleanup")

async def main():
    async with agent(turn, context=mounting(Memory(), cleanup)) as session:
        def stop(number, frame):
            session.coordinator.cancellation.request_graceful(grace=float(sys.argv[4]), reason="asked to end")
        signal.signal(getattr(signal, sys.argv[2]), stop)
        try:
            print_line(await session.execute("go"))
        except ExecutionCancelled as exc:
            print_line("cancelled:", exc.reason)
    return 0

sys.exit(run_natively(main))
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    ("manner", "grace", "end"),
    [("polite", "60", "stopped in time"), ("deaf", "0.05", "cancelled: asked to end")],
)
def test_f99_application_handler_stops_gracefully(backend, name, manner, grace, end):
    ended = run_child(_TERMINATED, backend, name, manner, grace, signal=signal.Signals[name])
    assert ended.lines == ["ready", "turn unwound", end, "cleanup"]
    assert (ended.code, ended.errors) == (0, "")
