"""Whole processes: two Ctrl-C, the end of the loop, exits in tools and hooks, trio inside of asyncio."""

from __future__ import annotations

import pytest

from tests._support.child_process import run_child

SLOW_CLOSING = """
import contextlib, os, signal

async def main():
    @contextlib.asynccontextmanager
    async def structured(coordinator, config):
        yield
        print_line("structured left")

    async def hook(coordinator, config):
        async def cleanup():
            print_line("cleanup begins")
            {during}
            await anyio.sleep(0.3)
            print_line("cleanup ends")
        return cleanup

    async def body(turn):
        {turn}
        return "done"

    session = agent(body, tools={{"tool-structured": structured}}, hooks={{"hooks-slow": hook}})
    try:
        async with session:
            print_line(await session.execute("go"))
    finally:
        print_line(repr(session).split()[-1], len(session.cleanup_failures), "failures")

try:
    run_natively(main)
except KeyboardInterrupt:
    print_line("interrupted")
"""

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"


LATER = f"import threading; threading.Timer(0.1, lambda: {INTERRUPT}).start()"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("turn", "lines"),
    [("pass", ["done"]), (f"{INTERRUPT}; await anyio.sleep(5)", [])],
    ids=["in the closing", "in the turn"],
)
def test_single_ctrl_c_closes_everything(backend, turn, lines):
    during = INTERRUPT if turn == "pass" else "pass"
    ended = run_child(SLOW_CLOSING.format(during=during, turn=turn), backend)
    closing = [
        "cleanup begins",
        "cleanup ends",
        "structured left",
        "closed> 0 failures",
        "interrupted",
    ]
    assert ended.lines == [*lines, *closing], ended.errors


@pytest.mark.parametrize(
    "during", [INTERRUPT, LATER], ids=["in a cleanup", "while a cleanup waits"]
)
def test_second_ctrl_c_on_asyncio_names_cleanup(during):
    """The second Ctrl-C is raised in the running code, or in the loop, which then cancels every task."""
    turn = f"{INTERRUPT}; await anyio.sleep(5)"
    ended = run_child(SLOW_CLOSING.format(during=during, turn=turn), "asyncio")
    assert ended.lines[0] == "cleanup begins", ended.errors
    assert ended.lines[-2:] == ["closed> 1 failures", "interrupted"], ended.errors
    assert "cleanup of hooks-slow failed" in ended.errors


def test_second_ctrl_c_on_trio_waits():
    turn = f"{INTERRUPT}; await anyio.sleep(5)"
    ended = run_child(SLOW_CLOSING.format(during=LATER, turn=turn), "trio")
    closing = [
        "cleanup begins",
        "cleanup ends",
        "structured left",
        "closed> 0 failures",
        "interrupted",
    ]
    assert ended.lines == closing, ended.errors


MANY_CLEANUPS = """
import os, signal, threading

async def main():
    def hook(letter):
        async def mount(coordinator, config):
            async def cleanup():
                print_line(letter, "begins")
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                await anyio.sleep(30)
            return cleanup
        return mount

    async def body(turn):
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(30)

    async with agent(body, hooks={f"hooks-{letter}": hook(letter) for letter in "cba"}) as session:
        await session.execute("go")

try:
    run_natively(main)
except KeyboardInterrupt:
    print_line("interrupted")
"""


def test_third_ctrl_c_on_asyncio_leaves_cleanups():
    ended = run_child(MANY_CLEANUPS, "asyncio")
    assert ended.lines == ["a begins", "b begins", "interrupted"], ended.errors
    assert "still to run: cleanup of hooks-b, cleanup of hooks-c" in ended.errors


LATE_ENTERING = """
import contextlib, os, signal, threading

async def main():
    entering, may_enter = threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def structured(coordinator, config):
        threading.Thread(target=interrupt, daemon=True).start()
        await anyio.to_thread.run_sync(connect)
        try:
            yield
            print_line("leaves")
            may_leave.set()
            await anyio.sleep_forever()
        finally:
            print_line("gone")

    def connect():  # cannot be cut off
        entering.set()
        may_enter.wait()

    def interrupt():
        entering.wait()
        os.kill(os.getpid(), signal.SIGINT)
        may_enter.set()
        may_leave.wait()
        for _ in range(int(sys.argv[2])):
            os.kill(os.getpid(), signal.SIGINT)

    may_leave = threading.Event()
    session = agent(tools={"tool-structured": structured}, session={"deadlines": {"cleanup": 0.5, "teardown": 1}})
    try:
        async with session:
            print_line("opened")
    finally:
        print_line(repr(session).split()[-1], len(session.cleanup_failures), "failures")

try:
    run_natively(main)
except KeyboardInterrupt:
    print_line("interrupted")
"""


@pytest.mark.parametrize(("backend", "more"), [("asyncio", "0"), ("trio", "0"), ("trio", "3")])
def test_ctrl_c_during_hanging_module_is_bounded(backend, more):
    """On asyncio a second Ctrl-C is raised in whatever code is running, as in the test above; trio keeps it."""
    ended = run_child(LATE_ENTERING, backend, more)
    assert ended.lines == ["leaves", "gone", "closed> 1 failures", "interrupted"], ended.errors


LOOP_END = """
import asyncio, contextlib

async def use(kind, started):
    @contextlib.asynccontextmanager
    async def structured(coordinator, config):
        if kind == "opening":
            started.set()
            await anyio.sleep(0.05)
        yield
        await anyio.sleep(0.01)
        print_line("structured left")

    async def hook(coordinator, config):
        async def cleanup():
            if kind == "closing":
                started.set()
            await anyio.sleep(0.05)
            print_line("cleanup ran")
        return cleanup

    async def body(turn):
        if kind == "turn":
            started.set()
        await anyio.sleep(0.05 if kind == "closing" else 60)
        return "done"

    session = agent(body, hooks={"hooks-slow": hook}, tools={"tool-structured": structured}, deadlines=1)
    try:
        async with session:
            await session.execute("go")
    finally:
        print_line(repr(session).split()[-1], len(session.cleanup_failures), "failures")

async def main():
    kind = sys.argv[2]
    started = asyncio.Event()
    task = asyncio.create_task(use(kind, started))
    await started.wait()
    # Left: asyncio.run cancels every task that is still there.

asyncio.run(main())
print_line("over")
"""


@pytest.mark.parametrize("kind", ["opening", "turn", "closing"])
def test_asyncio_run_end_closes_session(kind):
    """It cancels every task: a cleanup that is running is named, and those after it run."""
    ended = run_child(LOOP_END.replace(", deadlines=1", ""), "asyncio", kind)
    expected = {
        "opening": ["closed> 0 failures", "over"],
        "turn": ["cleanup ran", "closed> 0 failures", "over"],
        "closing": ["closed> 1 failures", "over"],
    }
    assert ended.lines == expected[kind], ended.errors
    assert (
        "structured mount of 'tool-structured' was cancelled with every other task" in ended.errors
    )
    assert ("cleanup of hooks-slow failed" in ended.errors) == (kind == "closing")


GUEST = """
import asyncio, trio

async def turn_on_trio():
    async with agent() as session:
        print_line(await session.execute("hello from trio"))
    return "left"

def nested():
    return trio.run(turn_on_trio)

async def in_asyncio():
    if sys.argv[2] == "nested":
        print_line(nested())
        return
    done = asyncio.get_running_loop().create_future()
    trio.lowlevel.start_guest_run(
        turn_on_trio,
        run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
        done_callback=done.set_result,
    )
    print_line((await done).unwrap())

async def beside():
    async with agent() as session:
        await in_asyncio()
        print_line(await session.execute("hello from asyncio"))

asyncio.run(beside())
"""


@pytest.mark.parametrize("how", ["nested", "guest"])
def test_trio_inside_asyncio_program(how):
    ended = run_child(GUEST, "asyncio", how)
    assert ended.lines == ["hello from trio", "left", "hello from asyncio"], ended.errors


EXIT_IN_HOOK = """
async def main():
    def leave(event, data):
        sys.exit(3)

    async def body(turn):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(turn.hooks.emit, "tool:pre", {})
        return "alive"

    async with agent() as neighbour, agent(body) as session:
        session.coordinator.hooks.register("tool:pre", leave)
        print_line(await session.execute("go"))
        print_line(await neighbour.execute("neighbour"))

run_natively(main)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_exit_in_child_task_handler_is_contained(backend):
    ended = run_child(EXIT_IN_HOOK, backend)
    assert ended.lines == ["alive", "neighbour"], ended.errors
    assert ended.code == 0
    assert "raised SystemExit: 3" in ended.errors
