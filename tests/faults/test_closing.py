"""Faults F25–F31: cleanups that hang or raise, closing twice, and calls in the wrong order."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from amplifier import ModuleLoadError, SessionBusyError, SessionStateError
from tests._support.small_agent import Loop, agent, give_up_after, heard, mounting, repeat_prompt

pytestmark = pytest.mark.virtual_time


def with_cleanups(**cleanups):
    """A session with one hook module per cleanup, in this order."""

    def module(cleanup):
        async def mount(coordinator, config):
            return cleanup

        return mount

    return agent(hooks={f"hooks-{name}": module(cleanup) for name, cleanup in cleanups.items()})


def noting(log, word, seconds=0.0):
    async def cleanup():
        await anyio.sleep(seconds)
        log.append(word)

    return cleanup


def raising(exception, log=None):
    async def cleanup():
        if log is not None:
            log.append(type(exception).__name__)
        raise exception

    return cleanup


# ── F25, F26: cleanups that misbehave ────────────────────────────────────────────────────────────


async def test_f25_hanging_cleanup_is_cut_short(caplog):
    log: list[Any] = []

    async def hang():
        try:
            await anyio.sleep_forever()
        finally:
            log.append("b cut off")

    session = with_cleanups(a=noting(log, "a"), b=hang, c=noting(log, "c"))
    events = heard(session, "cleanup:failed", "session:end")
    async with session:
        began = anyio.current_time()
    assert anyio.current_time() - began == pytest.approx(10)
    assert log == ["c", "b cut off", "a"]
    [failure] = session.cleanup_failures
    assert (failure.module, failure.overran) == ("hooks-b", True)
    assert [event for event, _ in events] == ["session:end", "cleanup:failed"]
    assert (events[1][1]["module_id"], events[1][1]["seconds"]) == ("hooks-b", 10)
    assert "hooks-b" in caplog.text


async def test_f26_raising_cleanups_all_run(caplog):
    """Not raised as a group: leaving a block must not replace the caller's own error. They are kept, and announced."""
    log: list[Any] = []
    session = with_cleanups(
        a=noting(log, "a"),
        b=raising(ValueError("b broke"), log),
        c=raising(asyncio.CancelledError(), log),
        d=raising(SystemExit(3), log),
        e=None,
    )
    session.coordinator.register_cleanup(lambda: log.append("the application's"))
    events = heard(session, "cleanup:failed")
    async with session:
        pass
    assert log == ["SystemExit", "CancelledError", "ValueError", "a", "the application's"]
    assert [failure.module for failure in session.cleanup_failures] == [
        "hooks-d",
        "hooks-c",
        "hooks-b",
    ]
    assert isinstance(session.cleanup_failures[0].error.__cause__, SystemExit)
    assert [data["module_id"] for _, data in events] == ["hooks-d", "hooks-c", "hooks-b"]
    assert "b broke" in caplog.text


async def test_f26_interrupt_in_cleanup_leaves_last():
    interrupt = KeyboardInterrupt()
    log: list[Any] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        async with with_cleanups(a=noting(log, "a"), b=raising(interrupt, log), c=noting(log, "c")):
            pass
    assert caught.value is interrupt
    assert log == ["c", "KeyboardInterrupt", "a"]


async def test_f26_cleanup_errors_keep_block_error():
    session = with_cleanups(a=raising(ValueError("cleanup")))
    with pytest.raises(LookupError, match="the caller's"):
        async with session:
            raise LookupError("the caller's")
    assert len(session.cleanup_failures) == 1


# ── F27, F28: closing again, closing while cancelled ─────────────────────────────────────────────


async def test_f27_second_closer_waits_for_first():
    log: list[Any] = []
    session = with_cleanups(a=noting(log, "a", seconds=5))
    await session.initialize()

    async def close(name):
        await session.cleanup()
        log.append(f"{name} done")

    async with anyio.create_task_group() as group:
        group.start_soon(close, "one")
        group.start_soon(close, "two")
    await session.cleanup()
    await session.coordinator.cleanup()
    assert log[0] == "a"
    assert sorted(log[1:]) == ["one done", "two done"]


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f28_cancelled_caller_waits_for_closing(how):
    log: list[Any] = []
    session = with_cleanups(a=noting(log, "a", 2), b=noting(log, "b", 2), c=noting(log, "c", 2))

    async def use():
        async with session:
            pass
        await anyio.sleep(1)  # a checkpoint: only now may the cancellation show
        log.append("went on")

    await give_up_after(1, how, use)
    log.append("caller left")
    assert log == ["c", "b", "a", "caller left"]


# ── F29–F31: calls at the wrong time ─────────────────────────────────────────────────────────────


async def test_f29_concurrent_turn_is_refused():
    async def body(turn):
        await turn.context.add_message(f"u {turn.prompt}")
        await anyio.sleep(5)
        await turn.context.add_message(f"a {turn.prompt}")
        return turn.prompt

    async with agent(body) as session:
        answers = []

        async def first():
            answers.append(await session.execute("one"))

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await anyio.sleep(1)
            began = anyio.current_time()
            with pytest.raises(SessionBusyError, match="busy") as caught:
                await session.execute("two")
            assert anyio.current_time() == began
            assert caught.value.session_id == session.session_id
        assert answers == ["one"]
        assert session.coordinator.get("context").messages == ["u one", "a one"]
        assert await session.execute("three") == "three"


async def test_f29_nested_turn_is_refused():
    async def body(turn):
        with pytest.raises(SessionBusyError):
            await turn.coordinator.session.execute("inner")
        return "outer"

    async with agent(body) as session:
        assert await session.execute("x") == "outer"


def counting_mounts(mounted, fail=False):
    async def mount(coordinator, config):
        mounted.append(len(mounted) + 1)
        await anyio.sleep(1)
        if fail:
            raise OSError("no")
        return Loop(repeat_prompt)

    return mount


async def test_f30_concurrent_opening_mounts_once():
    mounted: list[int] = []
    session = agent(orchestrator=counting_mounts(mounted))
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(session.initialize)
    assert mounted == [1]
    assert session.initialized
    await session.initialize()
    assert mounted == [1]
    assert await session.execute("hi") == "hi"
    await session.cleanup()


async def test_f30_opening_failure_reaches_every_waiter():
    session = agent(orchestrator=counting_mounts([], fail=True))
    outcomes = []

    async def open_it():
        try:
            await session.initialize()
        except (ModuleLoadError, SessionStateError) as exc:
            outcomes.append(type(exc).__name__)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(open_it)
    assert sorted(outcomes) == ["ModuleLoadError", "SessionStateError", "SessionStateError"]


async def test_f31_turn_outside_open_session_is_refused():
    session = agent()
    with pytest.raises(SessionStateError, match="open it first"):
        await session.execute("too early")
    async with session:
        assert await session.execute("hi") == "hi"
    with pytest.raises(SessionStateError, match="closed"):
        await session.execute("too late")


async def test_f31_session_is_not_entered_twice():
    async with agent() as session:
        with pytest.raises(SessionStateError, match="already open"):
            await session.__aenter__()
        assert await session.execute("hi") == "hi"


async def test_f31_turn_cannot_close_its_own_session():
    async def body(turn):
        with pytest.raises(SessionStateError, match="inside its own turn"):
            await turn.coordinator.session.cleanup()
        return "still here"

    async with agent(body, tools={"tool-x": mounting(None)}) as session:
        assert await session.execute("x") == "still here"
