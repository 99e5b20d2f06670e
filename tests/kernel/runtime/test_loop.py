"""The event loop: real cancellations, scopes, clocks, entering it from threads, timers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
from anyio.abc import TaskGroup

from amplifier.contracts.cancellation import (
    cancel_scope,
    is_cancellation_type,
    is_real_cancellation,
    loop_clock,
)
from amplifier.kernel.runtime.loop import Loop, Spawn, current_raw_task, start_timer
from tests.kernel.backends_alone import run_on, run_on_asyncio

# ── telling cancellations apart ──────────────────────────────────────────────────────────────────


async def test_backend_cancellation_is_real():
    seen = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException as exc:
            seen += [is_real_cancellation(exc), is_cancellation_type(exc)]
            raise
    assert seen == [True, True]


async def test_manual_asyncio_cancellation_is_not_real():
    assert is_cancellation_type(asyncio.CancelledError())
    assert not is_real_cancellation(asyncio.CancelledError())


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


async def test_made_scope_equals_anyio_scope():
    for _ in range(2):  # the second one comes by the short way
        made, usual = cancel_scope(5.0, shield=True), anyio.CancelScope(deadline=5.0, shield=True)
        assert type(made) is type(usual)
        assert (made.deadline, made.shield) == (usual.deadline, usual.shield)
    assert (cancel_scope().deadline, cancel_scope().shield) == (float("inf"), False)
    with cancel_scope() as scope:
        scope.cancel()
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_bare_clock_is_anyio_clock():
    clock = loop_clock()
    assert anyio.current_time() <= clock() <= anyio.current_time()


async def test_raw_task_is_running_task():
    assert id(current_raw_task()) == anyio.get_current_task().id


@pytest.mark.parametrize(
    "elsewhere", [False, True], ids=["called on it", "called in another thread"]
)
async def test_soon_runs_on_loop_thread_afterwards(elsewhere):
    ran: list[int] = []
    called = anyio.Event()
    loop = Loop()

    def note() -> None:
        ran.append(threading.get_ident())
        called.set()

    if elsewhere:
        thread = threading.Thread(target=loop.soon, args=(note,))
        thread.start()
        thread.join()
    else:
        loop.soon(note)
    assert ran == []
    with anyio.fail_after(30):
        await called.wait()
    assert ran == [threading.get_ident()]


async def test_soon_keeps_order_of_thread():
    order: list[int] = []
    done = anyio.Event()
    loop = Loop()

    def many() -> None:
        for number in range(100):
            loop.soon(lambda number=number: order.append(number))  # type: ignore[misc]
        loop.soon(done.set)

    await anyio.to_thread.run_sync(many)
    await done.wait()
    assert sorted(order) == list(range(100))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_soon_wakes_loop_from_signal_handler(backend):
    async def main() -> str:
        called = anyio.Event()
        loop = Loop()
        before = signal.signal(signal.SIGUSR1, lambda number, frame: loop.soon(called.set))
        try:
            # Sent by another thread while the loop sleeps, so that nothing but the signal can wake it.
            sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            sender.start()
            await called.wait()
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        return "woken"

    assert anyio.run(main, backend=backend) == "woken"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_soon_after_loop_end_does_nothing(backend):
    async def main() -> Loop:
        return Loop()

    loop = run_on(backend, main)
    ran: list[int] = []
    loop.soon(lambda: ran.append(1))
    assert ran == []
    assert not loop.is_running_here()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ended_loop_is_detected_without_waking(backend):
    async def main() -> Loop:
        loop = Loop()
        assert not loop.has_ended()
        if backend == "trio":
            assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 0
        assert not await anyio.to_thread.run_sync(loop.has_ended)
        return loop

    assert run_on(backend, main).has_ended()


async def test_loop_of_other_backend_is_not_running():
    loops: list[Loop] = []

    async def main() -> None:
        loops.append(Loop())

    def elsewhere() -> None:
        run_on("asyncio", main)
        run_on("trio", main)

    await anyio.to_thread.run_sync(elsewhere)
    assert [loop.is_running_here() for loop in loops] == [False, False]


def spawning(group: TaskGroup) -> Spawn:
    def spawn(fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        group.start_soon(fn)

    return spawn


# ── timers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "cancelled", [False, True], ids=["undisturbed", "its task group is cancelled"]
)
async def test_timer_fires_once_on_time(cancelled):
    fired: list[float] = []
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        start_timer(30, lambda: fired.append(anyio.current_time() - began), spawning(group))
        if cancelled:
            group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(100)
    assert fired == [pytest.approx(30)]


@pytest.mark.virtual_time
async def test_stopped_timer_never_fires():
    fired: list[int] = []
    async with anyio.create_task_group() as group:
        stop = start_timer(30, lambda: fired.append(1), spawning(group))
        await anyio.sleep(10)
        stop()
        stop()
        await anyio.sleep(100)
    assert fired == []


def test_timer_without_task_is_asyncio_only():
    async def main() -> list[int]:
        fired: list[int] = []
        stop = start_timer(30, lambda: fired.append(1), None)
        await anyio.sleep(100)
        stop()
        return fired

    assert run_on_asyncio(main) == [1]
    assert run_on("trio", main) == []
