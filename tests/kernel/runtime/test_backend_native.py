"""What an AnyIO shield does not stop: native ``Task.cancel()``, once, twice, at every moment. asyncio only."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.kernel.runtime.child import run_in_child
from tests._support.backends_alone import loop_turns, on_asyncio, run_on_asyncio

Section = Callable[[], Awaitable[Any]]

run_guarded = run_in_child
run_shielded = functools.partial(run_in_child, shield=True)


class Caller:
    """A task that runs a section and then goes on; its log shows what happened in which order."""

    def __init__(self, run: Callable[..., Awaitable[Any]], section: Section) -> None:
        self.log: list[str] = []
        self.after = 0
        self.task = asyncio.get_running_loop().create_task(self._run(run, section))

    async def _run(self, run: Callable[..., Awaitable[Any]], section: Section) -> Any:
        try:
            value = await run(section, name="section")
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        except BaseException as exc:
            self.log.append(f"raised {type(exc).__name__}")
            await self._next_await()
            raise
        self.log.append(f"returned {value}")
        await self._next_await()
        return value

    async def _next_await(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.log.append("cancelled at the next await")
            raise

    async def ended(self) -> list[str]:
        await asyncio.wait([self.task])
        return self.log


async def cancel_times(caller: Caller, times: int) -> None:
    for _ in range(times):
        await loop_turns()
        caller.task.cancel()
    await loop_turns()


async def run_unwinding(section: Section, name: str) -> Any:
    """A guarded section that is cancelled already, of which the caller knows nothing, and unwinds under a shield."""

    async def unwinding() -> Any:
        with anyio.CancelScope(shield=True):
            return await section()

    return await run_guarded(unwinding, name=name, is_unwinding=lambda: True)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("ending", ["value", "error"])
@pytest.mark.parametrize("run", [run_shielded, run_unwinding], ids=["shielded", "guarded and unwinding"])
@on_asyncio
async def test_native_cancels_wait_until_a_section_is_done_and_none_is_lost(run, ending, times):
    release = asyncio.Event()

    async def closing() -> str:
        await release.wait()
        caller.log.append("closed")
        if ending == "error":
            raise ValueError("closing failed")
        return "value"

    caller = Caller(run, closing)
    await cancel_times(caller, times)
    assert caller.log == []
    release.set()
    end = ["cancelled"] if ending == "value" else ["raised ValueError", "cancelled at the next await"]
    assert (await caller.ended(), caller.task.cancelling()) == (["closed", *end], times)


@on_asyncio
async def test_a_native_cancel_before_the_shielded_section_begins_does_not_keep_it_from_running():
    log: list[str] = []

    async def closing() -> None:
        await asyncio.sleep(0)
        log.append("closed")

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await run_shielded(closing, name="closing")

    task = asyncio.get_running_loop().create_task(caller())
    await asyncio.wait([task])
    assert [*log, "cancelled" if task.cancelled() else "lost"] == ["closed", "cancelled"]


@on_asyncio
async def test_the_first_native_cancel_reaches_a_guarded_section_and_later_ones_leave_what_it_shields_in_peace():
    release = asyncio.Event()

    async def unwinding() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            caller.log.append("reached")
            with anyio.CancelScope(shield=True):  # which alone does not keep a native cancel away
                await release.wait()
            caller.log.append("unwound")

    caller = Caller(run_guarded, unwinding)
    await cancel_times(caller, 3)
    assert caller.log == ["reached"]
    release.set()
    assert await caller.ended() == ["reached", "unwound", "cancelled"]


@on_asyncio
async def test_code_that_swallows_a_native_cancel_is_cancelled_at_every_await_from_the_second_one_on():
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 1000:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 5:
                    raise

    caller = Caller(run_guarded, stubborn)
    await cancel_times(caller, 1)
    assert (caller.log, swallowed) == ([], 1)
    await cancel_times(caller, 1)
    assert (await caller.ended(), swallowed) == (["cancelled"], 6)


@on_asyncio
async def test_a_native_cancel_of_a_guarded_section_is_edge_triggered_like_any_native_cancel():
    async def unwinding() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            caller.log.append("awaited in peace")

    caller = Caller(run_guarded, unwinding)
    await cancel_times(caller, 1)
    assert await caller.ended() == ["awaited in peace", "cancelled"]


@on_asyncio
async def test_the_message_of_a_native_cancel_is_handed_on():
    seen: list[tuple[Any, ...]] = []

    async def noting() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError as exc:
            seen.append(exc.args)
            raise

    caller = Caller(run_guarded, noting)
    await loop_turns()
    caller.task.cancel("shutting down")
    await caller.ended()
    assert seen == [("shutting down",)]


@on_asyncio
async def test_a_guarded_section_that_swallows_a_native_cancel_does_not_lose_it_for_the_caller():
    async def swallowing() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    caller = Caller(run_guarded, swallowing)
    await cancel_times(caller, 1)
    assert await caller.ended() == ["cancelled"]


@pytest.mark.parametrize("times", [1, 2])
@on_asyncio
async def test_a_section_that_answers_a_cancel_with_an_error_has_consumed_that_one_and_not_the_second(times):
    release = asyncio.Event()

    async def failing() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()
            raise ValueError("while unwinding")

    caller = Caller(run_guarded, failing)
    await cancel_times(caller, times)
    release.set()
    assert await caller.ended() == ["raised ValueError", *(["cancelled at the next await"] if times == 2 else [])]


@pytest.mark.parametrize("run", [run_guarded, run_shielded], ids=["guarded", "shielded"])
@pytest.mark.parametrize("ending", ["value", "error"])
@on_asyncio
async def test_a_cancel_at_the_very_moment_of_completion_is_delivered(run, ending):
    release = asyncio.Event()

    async def section() -> str:
        await release.wait()
        # Runs after this task is done and before the caller, which its completion makes runnable right after this.
        asyncio.get_running_loop().call_soon(caller.task.cancel)
        if ending == "error":
            raise ValueError("at the end")
        return "value"

    caller = Caller(run, section)
    await loop_turns()
    release.set()
    log = ["cancelled"] if ending == "value" else ["raised ValueError", "cancelled at the next await"]
    assert (await caller.ended(), caller.task.cancelled()) == (log, True)


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("run", [run_guarded, run_shielded], ids=["guarded", "shielded"])
@on_asyncio
async def test_a_cancel_at_any_turn_of_the_loop_is_delivered_and_no_section_outlives_its_caller(run, times, turns):
    running = []

    async def section() -> None:
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

    async def calling() -> None:
        await run(section, name="section")
        await asyncio.sleep(1000)

    task = asyncio.get_running_loop().create_task(calling())
    await loop_turns(turns)
    for _ in range(times):
        task.cancel()
        await loop_turns(1)
    await asyncio.wait([task])
    assert (task.cancelled(), bool(running)) == (True, False)


@on_asyncio
async def test_a_native_timeout_around_a_guarded_section_becomes_a_timeout_error():
    log = []

    async def unwinding() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            log.append("unwound")

    try:
        async with asyncio.timeout(2):
            await run_guarded(unwinding, name="section")
    except TimeoutError:
        log.append("timed out")
    task = asyncio.current_task()
    assert task is not None
    assert f"{log} {task.cancelling()}" == "['unwound', 'timed out'] 0"


@pytest.mark.parametrize("run", [run_guarded, run_shielded], ids=["guarded", "shielded"])
@on_asyncio
async def test_a_native_cancel_under_a_cancelled_scope_is_not_swallowed_by_the_scope(run):
    log: list[str] = []
    release = asyncio.Event()

    async def section(scope: anyio.CancelScope) -> None:
        asyncio.get_running_loop().call_soon(scope.cancel)
        try:
            await release.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(1)
            log.append("unwound")

    async def calling() -> None:
        with anyio.CancelScope() as scope:
            await run(section, scope, name="section")
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.append("went on")

    task = asyncio.get_running_loop().create_task(calling())
    await loop_turns(6)
    task.cancel()
    release.set()
    await asyncio.wait([task])
    assert (log, task.cancelled()) == (["unwound"], True)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("run", [run_guarded, run_shielded], ids=["guarded", "shielded"])
def test_ctrl_c_inside_a_section_leaves_the_loop_and_its_neighbours_alone(run, kind):
    async def main() -> str:
        neighbour = asyncio.get_running_loop().create_task(asyncio.sleep(1, "well"))

        async def leaving() -> None:
            await asyncio.sleep(0)
            raise kind

        try:
            await run(leaving, name="leaving")
        except BaseException as exc:
            return f"{type(exc).__name__}, neighbour {await neighbour}"
        return "lost"

    assert run_on_asyncio(main) == f"{kind.__name__}, neighbour well"


@pytest.mark.parametrize("run", [run_guarded, run_shielded], ids=["guarded", "shielded"])
def test_a_natively_cancelled_section_keeps_nothing_alive(run):
    class Held:
        pass

    async def main() -> bool:
        held = Held()
        gone = weakref.ref(held)

        async def section(held: Held) -> None:
            await asyncio.sleep(1)

        task = asyncio.get_running_loop().create_task(run(section, held, name="section"))
        await loop_turns()
        task.cancel()
        await asyncio.wait([task])
        del task, held
        await loop_turns()
        return gone() is None

    gc.collect()
    gc.disable()  # the collector would hide a reference cycle
    try:
        assert run_on_asyncio(main)
    finally:
        gc.enable()


@pytest.mark.parametrize("run", [run_guarded, run_shielded])
@on_asyncio
async def test_a_section_is_a_task_of_its_own_from_its_first_step_on(run):
    """Also where it starts inside a step of its caller: a native timeout of a module must not look like a cancel."""

    caller = asyncio.current_task()
    inside: list[Any] = []

    async def section() -> str:
        inside.append(asyncio.current_task())
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(1000)
        except TimeoutError:
            inside.append(asyncio.current_task())
        return "whole"

    assert await run(section, name="a section") == "whole"
    assert asyncio.current_task() is caller
    assert inside[0] is inside[1]
    assert inside[0] is not caller
    assert inside[0].get_name() == "a section"
    assert caller is not None
    assert caller.cancelling() == 0


@pytest.mark.parametrize("run", [run_guarded, run_shielded])
@pytest.mark.parametrize("factory", ["none", "plain", "eager"])
@on_asyncio
async def test_a_section_never_starts_inside_the_step_of_its_caller_whatever_the_task_factory(run, factory):
    def plain(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=loop, **options)

    eager = getattr(asyncio, "eager_task_factory", plain)  # from Python 3.12 on
    asyncio.get_running_loop().set_task_factory({"none": None, "plain": plain, "eager": eager}[factory])
    turns: list[int] = []

    async def section() -> str:
        assert turns == [1]
        return "done"

    asyncio.get_running_loop().call_soon(turns.append, 1)
    assert await run(section, name="section") == "done"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("run", [run_guarded, run_shielded])
@on_asyncio
async def test_a_scope_that_the_first_step_of_a_section_cancels_leaves_nothing_behind(run):
    with anyio.CancelScope() as outer:

        async def section() -> str:
            outer.cancel()
            return "done"

        await run(section, name="section")
    for _ in range(3):
        await asyncio.sleep(0)  # a stray cancellation would strike here
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("run", [run_guarded, run_shielded])
def test_a_loop_that_makes_its_tasks_itself_can_run_in_childs(run):
    class OwnLoop(asyncio.SelectorEventLoop):
        def get_task_factory(self) -> Any:
            raise NotImplementedError  # as asyncio's abstract loop does

    async def section() -> str:
        return "done"

    with asyncio.Runner(loop_factory=OwnLoop) as runner:
        assert runner.run(run(section, name="section")) == "done"
