"""How functions that are tools are called: in which thread, in which order, and what is left of them after Ctrl-C, a stop or a timeout."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from amplifier import agent, tool
from amplifier.functions import FunctionTool, check_cancelled
from amplifier.testing import script, wait_for
from tests._support.terminal import PATIENCE, Terminal, open_terminal
from tests._support.tree import ROOT

BACKENDS = ("asyncio", "trio")


@contextmanager
def program_at_terminal(tmp_path: Path, text: str, *, stdout: Any = None) -> Iterator[Terminal]:
    path = tmp_path / "program.py"
    path.write_text(text)
    with open_terminal(
        home=tmp_path, cwd=tmp_path, stdout=stdout, program=[sys.executable, "-X", "dev", str(path)]
    ) as terminal:
        yield terminal


ASKS = """
import anyio
from amplifier import agent
from amplifier.testing import script

def send(text: str) -> str:
    "Sends a text."
    return text

async def main() -> None:
    model = script([("send", {{"text": "one"}}), ("send", {{"text": "two"}})], "done")
    async with agent(model, tools=[send], approve="ask") as session:
        print(await session.execute("x"), [call.error for call in session.last_turn.tool_calls])

anyio.run(main, backend="{backend}")
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("output", ["terminal", "pipe"])
def test_ctrl_c_at_question_ends_program(backend, output, tmp_path):
    with (
        (tmp_path / "output").open("w") as file,
        program_at_terminal(
            tmp_path, ASKS.format(backend=backend), stdout=file if output == "pipe" else None
        ) as terminal,
    ):
        if output == "pipe":
            while "[y/N]" not in (tmp_path / "output").read_text():
                assert terminal.process.poll() is None, terminal.end()
        else:
            terminal.expect("[y/N]")
        terminal.send(signal.SIGINT)
        assert terminal.end() != 0
        assert "KeyboardInterrupt" in terminal.text
        assert "Fatal Python error" not in terminal.text
        assert "ResourceWarning" not in terminal.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_partial_line_does_not_block_program(backend, tmp_path):
    with program_at_terminal(tmp_path, ASKS.format(backend=backend)) as terminal:
        terminal.expect("[y/N]")
        terminal.type("y\x04")  # Ctrl-D ends the input without ending the line
        terminal.expect("[y/N]")
        terminal.send(signal.SIGINT)
        assert terminal.end() != 0
        assert "KeyboardInterrupt" in terminal.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_terminal_questions_are_answered_in_turn(backend, tmp_path):
    with program_at_terminal(tmp_path, ASKS.format(backend=backend)) as terminal:
        terminal.expect("[y/N]")
        terminal.type("y\n")
        terminal.expect("[y/N]")
        terminal.type("\n")
        terminal.expect("done ['', 'denied")
        assert terminal.end() == 0


BLOCKS = """
import threading
import anyio
from amplifier import agent, tool
from amplifier.testing import script

@tool({options})
def block() -> None:
    "Blocks."
    print("blocked", flush=True)
    threading.Event().wait()

async def main() -> None:
    async with agent(script([("block", {{}})], "done"), tools=[block]) as session:
        print(await session.execute("x"))

anyio.run(main, backend="{backend}")
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_ends_program_with_blocking_function(backend, tmp_path):
    with program_at_terminal(tmp_path, BLOCKS.format(backend=backend, options="")) as terminal:
        terminal.expect("blocked")
        terminal.send(signal.SIGINT)
        assert terminal.end() != 0
        assert "KeyboardInterrupt" in terminal.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_abandoned_function_does_not_hold_program(backend, tmp_path):
    with program_at_terminal(
        tmp_path, BLOCKS.format(backend=backend, options="timeout=0.01")
    ) as terminal:
        terminal.expect("done")
        assert terminal.end() == 0
        assert "Warning" not in terminal.text


async def test_abandoned_functions_do_not_block_others():
    go_on = threading.Event()

    token = anyio.lowlevel.current_token()

    def block() -> None:
        anyio.from_thread.run_sync(begun.set, token=token)
        go_on.wait(PATIENCE)

    try:
        for _ in range(45):
            begun = anyio.Event()
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(FunctionTool(block).execute, {})
                    await begun.wait()
                    group.cancel_scope.cancel()
    finally:
        go_on.set()


async def test_calls_above_limit_wait():
    lock, running, most = threading.Lock(), 0, 0

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    made = FunctionTool(count)
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(made.execute, {})
    assert (running, 0 < most <= 40) == (0, True)


@pytest.fixture
def undisturbed_threads() -> Iterator[None]:
    """A thread runs until it waits, so that the order in which functions begin is the one in which they were called."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("undisturbed_threads")
@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming", "loop-events"])
async def test_functions_begin_in_order_of_model(loop):
    begun: list[int] = []

    def first(number: int) -> None:
        """First."""
        begun.append(number)

    def second(number: int) -> None:
        """Second."""
        begun.append(number)

    calls = [("first" if number % 3 else "second", {"number": number}) for number in range(8)]
    plan = {"session": {"orchestrator": loop}}
    async with agent(script(calls, calls, "done"), tools=[first, second], plan=plan) as session:
        assert await session.execute("x") == "done"
    assert begun == [*range(8), *range(8)]


async def _base(number: int) -> str:
    await anyio.lowlevel.checkpoint()
    return f"{number} in {threading.current_thread().name}"


def _returns_coroutine(number: int) -> Any:
    return _base(number)


@functools.wraps(_base)
def _wraps(*args: Any, **more: Any) -> Any:
    return _base(*args, **more)


class _AsyncCall:
    async def __call__(self, number: int) -> str:
        return await _base(number)


class _Call:
    def __call__(self, number: int) -> Any:
        return _base(number)


@pytest.mark.parametrize(
    "function",
    [_base, _returns_coroutine, _wraps, _AsyncCall(), _Call(), _AsyncCall().__call__,
     functools.partial(_base), functools.partial(_returns_coroutine), functools.partial(_AsyncCall())],
    ids=["async", "returns", "wraps", "async object", "object", "method", "partial", "partial that returns", "partial of an object"],
)  # fmt: skip
async def test_returned_awaitable_is_awaited_in_loop(function):
    result = await FunctionTool(function).execute({"number": 3})
    assert result.output == f"3 in {threading.current_thread().name}"


async def test_function_may_call_into_event_loop():
    loop_thread, token = threading.get_ident(), anyio.lowlevel.current_token()

    async def here() -> int:
        await anyio.lowlevel.checkpoint()
        return threading.get_ident()

    def calls_back() -> list[bool]:
        check_cancelled()
        return [
            anyio.from_thread.run(here, token=token) == loop_thread,
            anyio.from_thread.run_sync(threading.get_ident, token=token) == loop_thread,
        ]

    assert (await FunctionTool(calls_back).execute({})).output == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_function_may_run_own_event_loop(backend):
    def own_loop() -> str:
        return anyio.run(_base, 1, backend=backend)

    assert (await FunctionTool(own_loop).execute({})).output.startswith("1 in amplifier")


async def test_function_can_check_its_cancellation():
    running, ended, token = anyio.Event(), threading.Event(), anyio.lowlevel.current_token()

    def work() -> None:
        anyio.from_thread.run_sync(running.set, token=token)
        try:
            while True:
                check_cancelled()
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(FunctionTool(work).execute, {})
        await running.wait()
        group.cancel_scope.cancel()
    assert ended.wait(PATIENCE)


@pytest.mark.parametrize("options", [{}, {"quick": True}, {"isolate": True}])
async def test_check_cancelled_in_awaited_call(options):
    check_cancelled()
    result = await FunctionTool(tool(**options)(looks_for_its_cancellation)).execute({})
    assert result.output == "still wanted"


def looks_for_its_cancellation() -> str:
    check_cancelled()
    return "still wanted"


async def test_cancelled_scope_calls_no_function():
    called: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await FunctionTool(lambda_named(lambda: called.append(1))).execute({})
    assert called == []


def lambda_named(function: Callable[[], Any]) -> Callable[[], Any]:
    return tool(name="unnamed")(function)


async def test_function_error_has_no_cycle():
    def fails() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await FunctionTool(fails).execute({})


ENDS = """
import sys
from amplifier import run_sync, tool
from amplifier.testing import script

def add(n: int) -> int:
    "Adds one."
    return n + 1

@tool(isolate=True)
def add_two(n: int) -> int:
    "Adds two."
    return n + 2

if __name__ == "__main__":
    model = script([("add", {"n": 1}), ("add_two", {"n": 1})], "done")
    print(run_sync("x", model, tools=[add, add_two], backend=sys.argv[1]))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_program_with_functions_ends_without_warnings(backend, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(ENDS)
    finished = subprocess.run(
        [sys.executable, "-X", "dev", path, backend], capture_output=True, text=True, check=False
    )
    assert (finished.stdout, finished.returncode) == ("done\n", 0)
    assert "Warning" not in finished.stderr


# ── functions in a process of their own ──


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@tool(isolate=True)
def raises_what_cannot_be_sent() -> None:
    raise TwoArguments("this", "that")


@tool(isolate=True)
def raises_what_ends_programs(name: str) -> None:
    raise {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[name](3)


@tool(isolate=True)
def leaves_a_thread() -> str:
    threading.Thread(target=threading.Event().wait).start()
    return "answered"


@tool(isolate=True)
def leaves_a_process(path: str) -> str:
    _start_sleeper(path)
    return "answered"


@tool(isolate=True)
def starts_a_process_and_waits(path: str) -> None:
    _start_sleeper(path)
    threading.Event().wait()


def _start_sleeper(path: str) -> None:
    code = f"import os, time\nopen({path!r}, 'w').write(str(os.getpid()))\ntime.sleep(10000)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while not Path(path).exists() or not Path(path).read_text():
        pass


async def test_unsendable_exception_keeps_name_and_text():
    with pytest.raises(RuntimeError, match=r"^TwoArguments: this and that$"):
        await FunctionTool(raises_what_cannot_be_sent).execute({})


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
async def test_process_ending_exception_is_tool_error(name):
    with pytest.raises(RuntimeError, match=f"^it raised {name}: 3$"):
        await FunctionTool(raises_what_ends_programs).execute({"name": name})


async def test_leftover_threads_do_not_delay_answer():
    with anyio.fail_after(PATIENCE):
        assert (await FunctionTool(leaves_a_thread).execute({})).output == "answered"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere only the process group is known"
)
async def test_subprocess_sessions_end_with_isolated_function(tmp_path):
    path = tmp_path / "first"
    assert (await FunctionTool(leaves_a_process).execute({"path": str(path)})).output == "answered"
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
    path = tmp_path / "second"
    async with anyio.create_task_group() as group:
        group.start_soon(FunctionTool(starts_a_process_and_waits).execute, {"path": str(path)})
        assert await wait_for(lambda: path.exists() and bool(path.read_text()), timeout=PATIENCE)
        group.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere only the process group is known"
)
def test_isolated_function_ends_with_killed_program(tmp_path):
    path = tmp_path / "pid"
    code = (
        "import anyio\nfrom amplifier.functions import FunctionTool\nfrom tests.test_function_calls import starts_a_process_and_waits\n"
        f"anyio.run(FunctionTool(starts_a_process_and_waits).execute, {{'path': {str(path)!r}}})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not path.exists() or not path.read_text():
        assert process.poll() is None
    process.kill()
    process.wait()
    pid = int(path.read_text())
    give_up = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < give_up


AT_A_PROMPT = """
from amplifier import agent, tool, run_sync
from amplifier.testing import script

@tool(isolate=True)
def slow(n: int) -> int:
    "Adds one."
    return n + 1

try:
    run_sync("x", script([("slow", {"n": 1})], "done"), tools=[slow])
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_unimportable_isolated_function_is_refused(how):
    words = ["-c", AT_A_PROMPT] if how == "-c" else ["-"]
    finished = subprocess.run(
        [sys.executable, *words],
        input="" if how == "-c" else AT_A_PROMPT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tool 'slow' cannot be isolated" in finished.stdout, finished
    assert "write it into a file and import it from there" in finished.stdout


BELOW_ITS_GUARD = """
from amplifier import on, run_sync, tool
from amplifier.testing import script

if __name__ == "__main__":
    @tool(isolate=True)
    def slow(n: int) -> int:
        "Adds one."
        return n + 1

    @on("tool:error")
    async def show(event, data):
        print(data["error"])

    run_sync("x", script([("slow", {"n": 1})], "done"), tools=[slow], hooks=[show])
"""


def test_function_below_main_guard_explains_itself(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(BELOW_ITS_GUARD)
    finished = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert "its process cannot import it: Can't get attribute 'slow'" in finished.stdout, finished
    assert "define it at the top of a module" in finished.stdout
