"""Work in a child task: on both backends, and under native cancels, which only asyncio has."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.kernel.runtime.child import run_in_child
from tests.kernel.backends_alone import loop_turns, on_asyncio, run_on_asyncio

Work = Callable[..., Awaitable[Any]]
Run = Callable[..., Awaitable[Any]]

run_shielded = functools.partial(run_in_child, shield=True)
both = pytest.mark.parametrize("run", [run_in_child, run_shielded], ids=["plain", "shielded"])

variable: ContextVar[str] = ContextVar("variable", default="outside")


class Held:
    """Something that a result or an error may keep alive."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn the garbage collector off, which would hide a reference cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ── on both backends ──────────────────────────────────────────────────────────────────────────


@both
async def test_child_returns_result(run: Run):
    async def add(a: int, b: int) -> int:
        await anyio.lowlevel.checkpoint()
        return a + b

    assert await run(add, 1, 2, name="add") == 3


@both
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
async def test_child_error_is_unchanged(run: Run, kind: type[BaseException]):
    error = kind("mine")

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    with pytest.raises(kind) as caught:
        await run(fail, name="fail")
    assert caught.value is error


@both
async def test_child_has_own_context(run: Run):
    async def change() -> str:
        before = variable.get()
        variable.set("inside")
        return before

    variable.set("caller")
    assert (await run(change, name="change"), variable.get()) == ("caller", "caller")


async def test_shielded_child_ignores_cancelled_scope():
    done = []

    async def close() -> str:
        for step in range(3):
            await anyio.lowlevel.checkpoint()
            done.append(step)
        return "closed"

    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await run_shielded(close, name="close") == "closed"
        await anyio.lowlevel.checkpoint()
        pytest.fail("the cancellation was lost")
    assert (scope.cancelled_caught, done) == (True, [0, 1, 2])


async def test_cancelled_scope_waits_for_shielded_child():
    done = []
    entered, release = anyio.Event(), anyio.Event()

    async def close() -> None:
        entered.set()
        await release.wait()
        done.append("closed")

    async with anyio.create_task_group() as group:

        async def cancel_then_release() -> None:
            await entered.wait()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                release.set()

        group.start_soon(cancel_then_release)
        await run_shielded(close, name="close")
        await anyio.lowlevel.checkpoint()
        pytest.fail("the cancellation was lost")
    assert done == ["closed"]


async def test_result_of_shielded_child_survives_cancelled_scope():
    async def finish(scope: anyio.CancelScope) -> str:
        scope.cancel()
        await anyio.sleep(1)
        return "finished"

    results: list[str] = []
    with anyio.CancelScope() as scope:
        results.append(await run_shielded(finish, scope, name="finish"))
        await anyio.lowlevel.checkpoint()
        results.append("continued")
    assert results == ["finished"]


async def test_cancelled_scope_reaches_every_checkpoint():
    seen = []

    async def unwind() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            for attempt in ("first", "second"):
                try:
                    await anyio.lowlevel.checkpoint()
                except anyio.get_cancelled_exc_class():
                    seen.append(attempt)
                    if attempt == "second":
                        raise

    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_in_child(unwind, name="unwind")
    assert (scope.cancelled_caught, seen) == (True, ["first", "second"])


async def test_child_may_shield_its_unwinding():
    done = []

    async def unwind() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                done.append("unwound")

    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_in_child(unwind, name="unwind")
    assert (scope.cancelled_caught, done) == (True, ["unwound"])


async def test_error_of_cancelled_child_is_raised():
    async def fail() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("while unwinding")

    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(ValueError, match="while unwinding"):
            await run_in_child(fail, name="fail")


async def test_swallowed_cancellation_reaches_caller():
    async def swallow() -> str:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        return "swallowed"

    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_in_child(swallow, name="swallow")
        pytest.fail("the cancellation was lost")
    assert scope.cancelled_caught


@pytest.mark.virtual_time
async def test_caller_deadline_ends_child():
    began = anyio.current_time()
    with anyio.move_on_after(7) as scope:
        await run_in_child(anyio.sleep, 100, name="sleep")
    assert scope.cancelled_caught
    assert anyio.current_time() - began == pytest.approx(7)


@both
@pytest.mark.parametrize("ending", ["value", "error", "cancelled"])
@pytest.mark.usefixtures("no_collector")
async def test_finished_child_keeps_nothing_alive(run: Run, ending: str):
    held = Held()
    gone = weakref.ref(held)

    async def work(held: Held) -> None:
        await anyio.lowlevel.checkpoint()
        if ending == "error":
            raise ValueError("out")

    with anyio.CancelScope() as scope:
        if ending == "cancelled":
            scope.cancel()
        with suppress(ValueError):
            await run(work, held, name="work")
    del work, held
    await anyio.lowlevel.checkpoint()
    assert gone() is None


# ── native cancels ────────────────────────────────────────────────────────────────────────────


class Caller:
    """A task that runs work in a child and then awaits once more. Its log shows the order."""

    def __init__(self, run: Run, work: Work) -> None:
        self.log: list[str] = []
        self.task = asyncio.get_running_loop().create_task(self._run(run, work))

    async def _run(self, run: Run, work: Work) -> None:
        try:
            value = await run(work, name="work")
        except asyncio.CancelledError as exc:
            self.log.append(f"cancelled{''.join(f' {arg}' for arg in exc.args)}")
            if exc.__cause__ is not None:
                self.log.append(f"because of {type(exc.__cause__).__name__}")
            raise
        self.log.append(f"returned {value}")
        await asyncio.sleep(0)

    async def cancel(self, times: int) -> None:
        for _ in range(times):
            await loop_turns()
            self.task.cancel()
        await loop_turns()

    async def ended(self) -> list[str]:
        await asyncio.wait([self.task])
        return self.log


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("ending", ["value", "error"])
@on_asyncio
async def test_native_cancels_wait_for_shielded_child(ending: str, times: int):
    release = asyncio.Event()

    async def close() -> str:
        await release.wait()
        caller.log.append("closed")
        if ending == "error":
            raise ValueError("closing failed")
        return "value"

    caller = Caller(run_shielded, close)
    await caller.cancel(times)
    assert caller.log == []
    release.set()
    end = ["cancelled"] if ending == "value" else ["cancelled", "because of ValueError"]
    assert await caller.ended() == ["closed", *end]
    assert caller.task.cancelled()


@on_asyncio
async def test_native_cancel_before_shielded_child_begins():
    log: list[str] = []

    async def close() -> None:
        await asyncio.sleep(0)
        log.append("closed")

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await run_shielded(close, name="close")

    task = asyncio.get_running_loop().create_task(call())
    await asyncio.wait([task])
    assert (log, task.cancelled()) == (["closed"], True)


# AnyIO has made the coroutine of the child, and leaves it to the garbage collector.
@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
@on_asyncio
async def test_shielded_child_cancelled_before_its_first_step_runs():
    """The end of a loop cancels the caller and the child, which never takes its first step."""
    log: list[str] = []

    async def close() -> None:
        await asyncio.sleep(0)
        log.append("closed")

    async def call() -> None:
        asyncio.get_running_loop().call_soon(cancel_all)
        await run_shielded(close, name="close")

    def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {main}
        log.append(f"{len(tasks)} tasks")
        for task in tasks:
            task.cancel()

    main = asyncio.current_task()
    caller = asyncio.get_running_loop().create_task(call())
    await asyncio.wait([caller])
    assert (log, caller.cancelled()) == (["2 tasks", "closed"], True)
    gc.collect()


@on_asyncio
async def test_plain_shield_holds_under_native_cancels():
    release = asyncio.Event()

    async def unwind() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            caller.log.append("reached")
            with anyio.CancelScope(shield=True):
                await release.wait()
            caller.log.append("unwound")

    caller = Caller(run_in_child, unwind)
    await caller.cancel(3)
    assert caller.log == ["reached"]
    release.set()
    assert await caller.ended() == ["reached", "unwound", "cancelled"]


@on_asyncio
async def test_native_cancel_is_level_triggered():
    swallowed = 0

    async def swallow() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 5:
                    raise

    caller = Caller(run_in_child, swallow)
    await caller.cancel(1)
    assert (await caller.ended(), swallowed) == (["cancelled"], 6)


@on_asyncio
async def test_caller_gets_its_own_cancel_message():
    caller = Caller(run_in_child, functools.partial(asyncio.sleep, 1000))
    await loop_turns()
    caller.task.cancel("shutting down")
    assert await caller.ended() == ["cancelled shutting down"]


@both
@pytest.mark.parametrize("ending", ["value", "error"])
@on_asyncio
async def test_native_cancel_at_completion_is_not_lost(run: Run, ending: str):
    release = asyncio.Event()

    async def work() -> str:
        await release.wait()
        # Runs after the child is done and before its caller continues.
        asyncio.get_running_loop().call_soon(caller.task.cancel)
        if ending == "error":
            raise ValueError("at the end")
        return "value"

    caller = Caller(run, work)
    await loop_turns()
    release.set()
    await caller.ended()
    assert caller.task.cancelled()


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("times", [1, 2])
@both
@on_asyncio
async def test_native_cancel_at_any_round(run: Run, times: int, turns: int):
    running = []

    async def work() -> None:
        running.append(1)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            try:
                for _ in range(2):
                    await asyncio.sleep(0)
            finally:
                running.pop()

    async def call() -> None:
        await run(work, name="work")
        await asyncio.sleep(1000)

    task = asyncio.get_running_loop().create_task(call())
    await loop_turns(turns)
    for _ in range(times):
        task.cancel()
        await loop_turns(1)
    await asyncio.wait([task])
    assert (task.cancelled(), running) == (True, [])


@on_asyncio
async def test_native_timeout_becomes_timeout_error():
    log = []

    async def unwind() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(5)
            log.append("unwound")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await run_in_child(unwind, name="unwind")
    task = asyncio.current_task()
    assert task is not None
    assert (log, task.cancelling()) == (["unwound"], 0)


@both
@on_asyncio
async def test_scope_keeps_native_cancel(run: Run):
    log: list[str] = []
    release = asyncio.Event()

    async def work(scope: anyio.CancelScope) -> None:
        asyncio.get_running_loop().call_soon(scope.cancel)
        try:
            await release.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(1)
            log.append("unwound")

    async def call() -> None:
        with anyio.CancelScope() as scope:
            await run(work, scope, name="work")
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.append("continued")

    task = asyncio.get_running_loop().create_task(call())
    await loop_turns(6)
    task.cancel()
    release.set()
    await asyncio.wait([task])
    assert (log, task.cancelled()) == (["unwound"], True)


@both
@pytest.mark.parametrize("text", [[], ["shutting down"]], ids=["plain", "with a text"])
@pytest.mark.parametrize("order", ["scope, native", "native, scope", "native, scope later"])
@on_asyncio
async def test_native_cancel_beside_scope_precedes_error(run: Run, order: str, text: list[str]):
    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            with anyio.CancelScope(shield=True):
                await loop_turns(5)
            raise ValueError("unwinding failed")

    async def call() -> None:
        with scope:
            try:
                await run(work, name="work")
            except asyncio.CancelledError as exc:
                raised.append(exc)
                raise

    scope = anyio.CancelScope()
    raised: list[asyncio.CancelledError] = []
    task = asyncio.get_running_loop().create_task(call())
    await loop_turns(5)
    if order == "scope, native":
        scope.cancel()
    task.cancel(*text)
    if order == "native, scope":
        scope.cancel()
    elif order == "native, scope later":
        await loop_turns(3)
        scope.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    [stop] = raised
    assert isinstance(stop.__cause__, ValueError)
    if order != "scope, native":
        assert list(stop.args) == text


@on_asyncio
async def test_error_precedes_recancelling_scope():
    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise ValueError("unwinding failed")

    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_later(1, scope.cancel)
        with pytest.raises(ValueError, match="unwinding failed"):
            await run_in_child(work, name="work")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@both
def test_interrupt_in_child_leaves_neighbours(run: Run, kind: type[BaseException]):
    async def main() -> str:
        neighbour = asyncio.get_running_loop().create_task(asyncio.sleep(1, "well"))

        async def leave() -> None:
            await asyncio.sleep(0)
            raise kind

        try:
            await run(leave, name="leave")
        except BaseException as exc:
            return f"{type(exc).__name__}, neighbour {await neighbour}"
        return "lost"

    assert run_on_asyncio(main) == f"{kind.__name__}, neighbour well"


@both
@pytest.mark.usefixtures("no_collector")
def test_cancelled_child_keeps_nothing_alive(run: Run):
    async def main() -> bool:
        held = Held()
        gone = weakref.ref(held)

        async def work(held: Held) -> None:
            await asyncio.sleep(1)

        task = asyncio.ensure_future(run(work, held, name="work"))
        await loop_turns()
        task.cancel()
        await asyncio.wait([task])
        del task, held
        await loop_turns()
        return gone() is None

    assert run_on_asyncio(main)


@both
@on_asyncio
async def test_child_is_ordinary_named_task(run: Run):
    caller = asyncio.current_task()

    async def work() -> tuple[object, bool]:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name(), task in asyncio.all_tasks() and task is not caller

    assert await run(work, name="a turn") == ("a turn", True)
    assert asyncio.all_tasks() == {caller}


@both
@on_asyncio
async def test_child_runs_under_any_task_factory(run: Run):
    def plain(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=loop, **options)

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    # The eager factory exists from Python 3.12 on.
    for factory in (plain, getattr(asyncio, "eager_task_factory", None)):
        asyncio.get_running_loop().set_task_factory(factory)
        assert await run(work, name="work") == "done"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@both
@on_asyncio
async def test_scope_cancelled_by_first_step(run: Run):
    with anyio.CancelScope() as outer:

        async def work() -> str:
            outer.cancel()
            return "done"

        await run(work, name="work")
    for _ in range(3):
        await asyncio.sleep(0)  # a stray cancellation would be raised here
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
