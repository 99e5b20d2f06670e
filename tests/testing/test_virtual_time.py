"""Virtual time: timers cost nothing, real work is waited for, and both backends look the same to AnyIO; waiting for a condition."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier.errors import MissingExtraError
from amplifier.testing import wait_for
from amplifier.testing.virtual_time import (
    Backend,
    TimeWatch,
    VirtualTimeLoop,
    virtual_backend,
    virtual_clock,
)

AN_HOUR = 3600.0


def run_on(backend: Backend, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    name, options = backend
    return anyio.run(function, *args, backend=name, backend_options=options)


def run_virtual(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return run_on(virtual_backend("asyncio"), function, *args)


@pytest.fixture(params=["asyncio", "trio"])
def virtual(request: pytest.FixtureRequest) -> Backend:
    return virtual_backend(request.param)


def test_hour_of_sleep_passes_at_once(virtual: Backend) -> None:
    async def sleeper() -> float:
        await anyio.sleep(AN_HOUR)
        return anyio.current_time()

    started = time.monotonic()
    assert run_on(virtual, sleeper) == pytest.approx(AN_HOUR)
    assert time.monotonic() - started < AN_HOUR / 10


class Watch(TimeWatch):
    """Holds the clock for so many looks, and notes what it is told."""

    def __init__(self, holds: int = 0) -> None:
        self.holds = holds
        self.turns = 0
        self.jumps: list[float] = []
        self.scopes: list[anyio.CancelScope] = []

    def is_busy(self) -> bool:
        self.holds -= 1
        return self.holds >= 0

    def expired(self) -> list[anyio.CancelScope]:
        return self.scopes

    def on_turn(self) -> None:
        self.turns += 1

    def on_jump(self, seconds: float) -> None:
        self.jumps.append(seconds)

    def on_stuck(self) -> bool:
        for scope in self.scopes:
            scope.cancel()
        return True


@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_watch_holds_clock_and_sees_jumps(name: str) -> None:
    watch = Watch(holds=3)
    run_on(virtual_backend(name, watch), anyio.sleep, AN_HOUR)
    assert watch.holds < 0
    assert watch.turns
    assert sum(watch.jumps) == pytest.approx(AN_HOUR, abs=1)


@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_watch_is_notified_of_deadlock(name: str) -> None:
    async def wait_in_vain(watch: Watch) -> bool:
        with anyio.CancelScope() as scope:
            watch.scopes.append(scope)
            await anyio.Event().wait()
        return scope.cancelled_caught

    watch = Watch()
    assert run_on(virtual_backend(name, watch), wait_in_vain, watch)


def test_clock_starts_at_zero_every_run(virtual: Backend) -> None:
    async def now() -> float:
        return anyio.current_time()

    assert run_on(virtual_backend(virtual[0]), now) == pytest.approx(0.0)
    assert run_on(virtual_backend(virtual[0]), now) == pytest.approx(0.0)


def test_runnable_work_goes_before_any_jump(virtual: Backend) -> None:
    async def busy_then_look() -> float:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, AN_HOUR)
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            now = anyio.current_time()
            tasks.cancel_scope.cancel()
        return now

    assert run_on(virtual, busy_then_look) == pytest.approx(0.0)


@pytest.mark.parametrize("has_own_limiter", [False, True])
def test_trio_wait_for_thread_holds_clock(
    has_own_limiter: bool,
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def work() -> str:
        asked.set()
        assert answered.wait(60)
        return "done"

    async def call() -> tuple[str | None, float]:
        limiter = anyio.CapacityLimiter(1) if has_own_limiter else None
        with anyio.move_on_after(AN_HOUR):
            return await anyio.to_thread.run_sync(work, limiter=limiter), anyio.current_time()
        return None, anyio.current_time()

    def answer_late() -> None:
        assert asked.wait(60)
        time.sleep(0.05)
        answered.set()

    helper = threading.Thread(target=answer_late)
    helper.start()
    answer, at = run_on(virtual_backend("trio"), call)
    helper.join()
    assert answer == "done"
    assert at < 60, "the clock went with the wall while the thread worked"


def test_trio_driven_await_holds_clock() -> None:
    """The frames of a coroutine that is driven by hand are not those of its task."""
    answered = threading.Event()

    class Driven:
        def __await__(self) -> Any:
            coroutine = anyio.to_thread.run_sync(answered.wait, 60)
            sent: Any = None
            while True:
                try:
                    sent = yield coroutine.send(sent)
                except StopIteration as stop:
                    return stop.value

    async def call() -> bool:
        threading.Timer(0.05, answered.set).start()
        with anyio.move_on_after(AN_HOUR):
            return bool(await Driven())
        return False

    assert run_on(virtual_backend("trio"), call)


@pytest.mark.parametrize("through", ["anyio", "asyncio", "executor"])
def test_running_worker_thread_holds_clock(through: str) -> None:
    """Were the clock to jump, the deadline would fire before the thread could answer."""

    seconds = 0.0

    def work() -> str:
        time.sleep(seconds)
        return "done"

    async def call() -> tuple[str | None, float]:
        with anyio.move_on_after(AN_HOUR):
            if through == "anyio":
                answer = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            elif through == "asyncio":
                answer = await asyncio.to_thread(work)
            else:
                answer = await asyncio.get_running_loop().run_in_executor(None, work)
            return answer, anyio.current_time()
        return None, anyio.current_time()

    for seconds in (
        0.05,
        1,
        10,
    ):  # on a busy machine the loop may begin to wait long after the thread began to work
        answer, at = run_virtual(call)
        assert answer == "done"
        if at > 0.8 * seconds or seconds == 10:
            assert 0.8 * seconds < at < 60, "the clock went with the wall while the thread worked"
            break


def test_child_process_without_pipes_holds_clock() -> None:
    async def run_child() -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "pass", stdin=subprocess.DEVNULL
        )
        with anyio.move_on_after(AN_HOUR):
            return await process.wait()
        return None

    assert run_virtual(run_child) == 0


def test_open_input_holds_clock() -> None:
    async def read_before_deadline() -> str:
        reader, writer = os.pipe()
        news = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, news.set)
        threading.Timer(0.03, os.write, (writer, b"x")).start()
        try:
            with anyio.move_on_after(AN_HOUR):
                await news.wait()
                return "news"
            return "deadline"
        finally:
            loop.remove_reader(reader)
            os.close(reader)
            os.close(writer)

    assert run_virtual(read_before_deadline) == "news"


def test_real_time_waits_for_unseen_thread() -> None:
    async def call(*, held: bool) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        news, left = asyncio.Event(), threading.Event()

        def work() -> None:
            left.wait(0.03 if held else 60)
            loop.call_soon_threadsafe(news.set)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with anyio.move_on_after(AN_HOUR) as scope:
                if held:
                    with loop.real_time():
                        await news.wait()
                else:
                    await news.wait()
            return not scope.cancelled_caught
        finally:
            left.set()
            thread.join()

    assert run_virtual(functools.partial(call, held=True))
    assert not run_virtual(functools.partial(call, held=False)), (
        "an unseen thread does not hold the clock"
    )


@pytest.mark.parametrize("beside_a_timer", [False, True])
def test_loop_waiting_for_thread_does_not_spin(beside_a_timer: bool) -> None:
    """CPU time, not wall time, distinguishes sleeping from spinning."""

    async def wait_for_thread() -> float:
        news = asyncio.Event()
        thread = threading.Timer(0.3, asyncio.get_running_loop().call_soon_threadsafe, (news.set,))
        before = time.thread_time()
        if beside_a_timer:
            with anyio.fail_after(AN_HOUR):
                await anyio.to_thread.run_sync(time.sleep, 0.3)
        else:
            thread.start()
            await news.wait()
            thread.join()
        return time.thread_time() - before

    assert run_virtual(wait_for_thread) < 0.15


def test_loop_closing_waits_for_executor_threads() -> None:
    finished: list[bool] = []

    def work() -> None:
        time.sleep(0.05)
        finished.append(True)

    async def abandon() -> None:
        call = asyncio.get_running_loop().run_in_executor(None, work)
        await anyio.lowlevel.checkpoint()
        call.cancel()

    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # asyncio warns when threads do not end in the time it gives them
        run_virtual(abandon)
    assert finished == [True]


def test_loop_can_be_collected_after_use() -> None:
    import gc
    import weakref

    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def remember_loop() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await anyio.sleep(1)

    run_virtual(remember_loop)
    gc.collect()
    assert loops[0]() is None


def test_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown backend 'curio': expected 'asyncio' or 'trio'"):
        virtual_backend("curio")


def test_missing_trio_error_names_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    monkeypatch.setitem(sys.modules, "trio.testing", None)
    with pytest.raises(MissingExtraError) as caught:
        virtual_clock()
    assert caught.value.extra == "trio"
    assert caught.value.missing == "trio"


def test_testing_import_loads_no_test_libraries() -> None:
    probe = (
        "import sys, amplifier.testing, amplifier.testing.virtual_time\n"
        "print(sorted({'trio', 'pytest', '_pytest', 'hypothesis', 'unittest.mock'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=280
    )
    assert shown.stdout.strip() == "[]"


def test_child_of_cancelled_start_is_waited_for():
    async def main() -> float:
        starting = asyncio.ensure_future(asyncio.create_subprocess_exec("sleep", "60"))
        for _ in range(2):  # then the child runs, and its pipes are being connected
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(starting, 1000)  # asyncio kills the child and waits for its end
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) < 60


@pytest.mark.virtual_time
async def test_wait_until_returns_soon_after_condition() -> None:
    began = anyio.current_time()
    assert await wait_for(lambda: anyio.current_time() - began >= 5, timeout=60)
    assert anyio.current_time() - began < 5.1


@pytest.mark.virtual_time
async def test_wait_until_gives_up_at_timeout() -> None:
    began = anyio.current_time()
    assert await wait_for(lambda: False) is False
    assert anyio.current_time() - began == pytest.approx(1.0)


@pytest.mark.virtual_time
async def test_wait_until_bounds_async_condition() -> None:
    looks = 0

    async def third_time() -> bool:
        nonlocal looks
        looks += 1
        return looks == 3

    async def never_answers() -> bool:
        await anyio.sleep_forever()
        return True

    assert await wait_for(third_time) is True
    assert looks == 3
    assert await wait_for(never_answers) is False
