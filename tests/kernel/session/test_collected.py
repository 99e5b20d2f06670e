"""A closed session is gone with the last reference to it, modules included: nothing waits for the garbage collector.

The collector is switched off, because it would hide a reference cycle. The usual one is an exception whose traceback has a frame
that names the exception, and with that frame everything the code there could reach.
"""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import weakref
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import AmplifierSession, ExecutionCancelled, ModuleLoader
from tests._support.small_agent import (
    Echo,
    Loop,
    Memory,
    agent,
    give_up_after,
    mounting,
    repeat_prompt,
)
from tests.kernel.backends_alone import run_on_asyncio

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _without_the_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextmanager
def logging_to_a_stream():
    """As programs do: pytest keeps every record, and with its exception the frames and all that they reach."""
    logger = logging.getLogger("amplifier")
    handlers, logger.handlers = logger.handlers, [logging.StreamHandler(io.StringIO())]
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.propagate = True


class Thing:
    """Something that a module owns: alive as long as the module is."""


# Classes are not made in tests: each is a reference cycle by itself.


class FailingManager:
    """A structured mount that fails when it is entered."""

    def __init__(self, thing):
        self.thing = thing

    async def __aenter__(self):
        raise ValueError(self.thing)

    async def __aexit__(self, *details):
        pass


async def gone(live):
    """Run a session's life; whatever it returned references to must be gone without the collector."""
    with logging_to_a_stream():
        refs = await live()
    for _ in range(3):  # finished tasks are let go of by the loop
        await anyio.lowlevel.checkpoint()
    left = [type(ref()).__name__ for ref in refs if ref() is not None]
    assert left == []


def living(make, use=None, *, opened="async with"):
    """The life of a session that ``make(thing)`` builds, and references to all that must be gone after it."""

    async def live():
        thing = Thing()
        session = make(thing)
        refs = [
            weakref.ref(each)
            for each in (thing, session, session.coordinator, session.coordinator.hooks)
        ]
        del thing
        if opened == "async with":
            async with session:
                if use is not None:
                    await use(session)
        else:
            await session.initialize()
            if use is not None:
                await use(session)
            await session.cleanup()
        return refs

    return live


async def emit(session):
    await session.coordinator.hooks.emit("e", {"k": 1})


async def emit_a_terminal_event(session):
    await session.coordinator.hooks.emit("tool:error", {})


async def emit_and_collect(session):
    await session.coordinator.hooks.emit_and_collect("e", {}, timeout=5)


async def collect(session):
    await session.coordinator.collect_contributions("c")


# ── nothing fails ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("opened", ["async with", "by hand"])
async def test_session_without_failures(opened):
    def make(thing):
        async def mount(coordinator, config):
            coordinator.thing_of_mine = thing
            coordinator.hooks.register("e", lambda event, data: thing and None)
            coordinator.register_capability("c", thing)
            coordinator.register_contributor("c", "c", lambda: thing)
            coordinator.register_cleanup(lambda: thing)
            return Echo()

        return agent(tools={"tool-a": mount})

    async def use(session):
        assert await session.execute("hi") == "hi"
        await emit(session)
        await collect(session)
        async with session.stream("hi") as events:
            assert [event.name async for event in events] == []
        async with session.fork() as child:
            assert await child.execute("hi") == "hi"

    await gone(living(make, use, opened=opened))


async def test_reopened_session_works_and_is_collected():
    loader = ModuleLoader(
        modules={"loop-a": mounting(Loop(repeat_prompt)), "context-a": mounting(Memory())}
    )

    async def live():
        session = AmplifierSession({"session": {"orchestrator": "loop-a", "context": "context-a"}})
        session.loader = session.coordinator.loader = loader.for_child(session.coordinator)
        for _ in range(2):
            await session.initialize()
            assert session.coordinator.session is session
            assert session.loader.coordinator is session.coordinator
            assert await session.execute("hi") == "hi"
            await session.cleanup()
        return [weakref.ref(session), weakref.ref(session.coordinator)]

    await gone(live)


@pytest.mark.parametrize("ended", ["left", "raised", "cancelled"])
async def test_session_with_abandoned_stream(ended):
    def make(thing):
        async def body(turn):
            assert thing
            await anyio.sleep(100)
            return "done"

        return agent(body)

    async def use(session):
        with anyio.move_on_after(1), suppress(LookupError):
            async with session.stream("hi"):
                await anyio.wait_all_tasks_blocked()
                if ended == "raised":
                    raise LookupError
                if ended == "cancelled":
                    await anyio.sleep(5)

    await gone(living(make, use))


def test_session_natively_cancelled_while_closing():
    def make(thing, closes):
        async def mount(coordinator, config):
            async def cleanup():
                assert thing
                closes.set()
                await anyio.sleep(2)

            coordinator.register_cleanup(cleanup)

        return agent(hooks={"hooks-a": mount})

    async def live():
        refs: list[weakref.ref[Any]] = []
        closes = asyncio.Event()

        async def open_and_close():
            thing = Thing()
            session = make(thing, closes)
            refs.extend(map(weakref.ref, (thing, session, session.coordinator)))
            async with session:
                del thing

        task = asyncio.get_running_loop().create_task(open_and_close())
        await closes.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return refs

    run_on_asyncio(lambda: gone(live))


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────


def failing_handler(how, **options):
    """A session whose handler fails: at the call, when it is awaited, or by its deadline."""

    def make(thing):
        async def mount(coordinator, config):
            def at_the_call(event, data):
                raise ValueError(thing)

            async def awaited(event, data):
                await anyio.lowlevel.checkpoint()
                raise ValueError(thing)

            async def late(event, data):
                assert thing
                await anyio.sleep_forever()

            def leaving(event, data):
                raise SystemExit(thing)

            handler = {
                "at the call": at_the_call,
                "awaited": awaited,
                "late": late,
                "exit": leaving,
            }[how]
            for event in ("e", "tool:error"):
                coordinator.hooks.register(event, handler, timeout=3, **options)

        async def listen(coordinator, config):
            coordinator.hooks.register("hook:failed", lambda event, data: None)
            coordinator.hooks.register("hook:timeout", lambda event, data: None)

        return agent(hooks={"hooks-a": mount, "hooks-b": listen})

    return make


@pytest.mark.parametrize("how", ["at the call", "awaited", "late", "exit"])
@pytest.mark.parametrize("on_failure", ["continue", "deny"])
@pytest.mark.parametrize("use", [emit, emit_a_terminal_event])
async def test_session_with_failing_handler(how, on_failure, use):
    await gone(living(failing_handler(how, on_failure=on_failure), use))


@pytest.mark.parametrize("how", ["at the call", "awaited", "late", "exit"])
async def test_session_with_failing_collected_handler(how):
    await gone(living(failing_handler(how), emit_and_collect))


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["at the call", "awaited", "late", "structured"])
async def test_session_with_failing_mount(how):
    def make(thing):
        async def awaited(coordinator, config):
            coordinator.register_capability("c", thing)
            await anyio.lowlevel.checkpoint()
            raise ValueError(thing)

        def at_the_call(coordinator, config):
            raise ValueError(thing)

        async def late(coordinator, config):
            assert thing
            await anyio.sleep_forever()

        def structured(coordinator, config):
            return FailingManager(thing)

        mount = {
            "at the call": at_the_call,
            "awaited": awaited,
            "late": late,
            "structured": structured,
        }[how]
        return agent(tools={"tool-a": mount}, session={"deadlines": {"mount": 5}})

    async def use(session):
        assert [failure.module_id for failure in session.failures] == ["tool-a"]

    await gone(living(make, use))


# ── contributors, cleanups, turns ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["at the call", "awaited", "late"])
@pytest.mark.parametrize(("what", "use"), [("contribution", collect), ("cleanup", None)])
async def test_session_with_failing_contributor_or_cleanup(what, use, how):
    def make(thing):
        async def mount(coordinator, config):
            async def wait():
                assert thing
                await anyio.sleep(0 if how == "awaited" else 100)
                raise ValueError(thing)

            def call():
                if how == "at the call":
                    raise ValueError(thing)
                return wait()

            if what == "contribution":
                coordinator.register_contributor("c", "c", call)
            else:
                coordinator.register_cleanup(call)
                coordinator.hooks.register("cleanup:failed", lambda event, data: None)

        return agent(hooks={"hooks-a": mount}, session={"deadlines": {what: 5}})

    await gone(living(make, use))


@pytest.mark.parametrize("how", ["raises", "stopped"])
async def test_session_with_unsuccessful_turn(how):
    def make(thing):
        async def body(turn):
            assert thing
            if how == "raises":
                raise ValueError(thing)
            turn.coordinator.request_cancel(immediate=True)
            await anyio.sleep_forever()

        return agent(body)

    async def use(session):
        with pytest.raises((ValueError, ExecutionCancelled)):
            await session.execute("hi")

    await gone(living(make, use))


# ── cancelled from outside ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["scope", "native"])
@pytest.mark.parametrize("where", ["handler", "contributor", "turn", "mount"])
async def test_cancelled_session(where, how):
    def make(thing):
        async def wait(*args):
            assert thing
            await anyio.sleep_forever()

        async def mount(coordinator, config):
            coordinator.hooks.register("e", wait)
            coordinator.register_contributor("c", "c", wait)
            if where == "mount":
                await wait()

        async def body(turn):
            if where == "handler":
                await turn.hooks.emit("e", {})
            elif where == "contributor":
                await turn.coordinator.collect_contributions("c")
            await wait()

        return agent(body, hooks={"hooks-a": mount})

    async def live():
        refs: list[weakref.ref[Any]] = []

        async def use():
            thing = Thing()
            session = make(thing)
            refs.extend(weakref.ref(each) for each in (thing, session, session.coordinator))
            del thing
            async with session:
                await session.execute("hi")

        await give_up_after(1, how, use)
        return refs

    await gone(live)


@pytest.mark.parametrize("opened", ["async with", "by hand"])
async def test_session_with_interrupted_cleanup(opened):
    def make(thing):
        async def mount(coordinator, config):
            def interrupted():
                raise KeyboardInterrupt(thing.__class__.__name__)

            coordinator.register_cleanup(interrupted)
            return Echo()

        return agent(tools={"tool-a": mount})

    async def live():
        session = make(Thing())
        refs = [weakref.ref(session), weakref.ref(session.coordinator)]
        # Not pytest.raises, which would keep the error.
        with suppress(KeyboardInterrupt):
            if opened == "async with":
                async with session:
                    pass
            else:
                await session.initialize()
                await session.cleanup()
            pytest.fail("nothing was raised")
        [failure] = session.cleanup_failures
        assert str(failure) == "cleanup of tool-a: Thing"
        return refs

    await gone(live)
