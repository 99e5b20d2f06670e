"""Host tasks and background work: entered and left in one task, ended in order, crashes contained. Time is virtual."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from amplifier import SessionStateError
from tests._support.small_agent import Echo, agent, heard, takes
from tests.kernel.backends_alone import on_asyncio

pytestmark = pytest.mark.virtual_time


def structured(log, name, value=None, leaving=0.0):
    """A structured mount that keeps a task group open and notes when it is entered and left."""

    @asynccontextmanager
    async def mount(coordinator, config):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            log.append(f"{name} entered")
            yield value
            await anyio.sleep(leaving)
            log.append(f"{name} left")
            group.cancel_scope.cancel()

    return mount


def with_cleanup(log, name):
    async def mount(coordinator, config):
        log.append(f"{name} mounted")
        return lambda: log.append(f"{name} cleaned up")

    return mount


# ── structured mounts ────────────────────────────────────────────────────────────────────────────


async def test_service_outlives_users_under_cancellation(log):
    hooks = {
        "hooks-service": structured(log, "service", leaving=2),
        "hooks-user": structured(log, "user", leaving=2),
    }
    with anyio.move_on_after(1):
        async with agent(hooks=hooks):
            await anyio.sleep_forever()
    assert log == ["service entered", "user entered", "user left", "service left"]


async def test_structured_instance_is_mounted(log):
    called = structured(log, "b", value=lambda: log.append("called"))
    session = agent(
        tools={"tool-a": structured(log, "a", value=Echo("mine"))}, hooks={"hooks-b": called}
    )
    async with session:
        assert list(session.coordinator.get("tools")) == ["mine"]
        assert session.coordinator.mounts.owner_of("tools", "mine") == "tool-a"
    assert log == ["a entered", "b entered", "b left", "a left"]


def entering_all_the_same(log, leave):
    """A structured mount that does not end when its entering is cancelled, and awaits ``leave()`` when it leaves."""

    @asynccontextmanager
    async def mount(coordinator, config):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
        try:
            yield
            log.append("leaves")
            await leave()
        finally:
            log.append("gone")

    return mount


async def refuse_to_close():
    raise OSError("would not close")


@pytest.mark.parametrize(
    ("leave", "seconds", "overran"), [(refuse_to_close, 2, False), (anyio.sleep_forever, 11, True)]
)
async def test_late_entering_module_is_left_and_reported(log, leave, seconds, overran):
    session = agent(
        hooks={"hooks-a": structured(log, "a"), "hooks-late": entering_all_the_same(log, leave)}
    )
    with takes(seconds):
        with anyio.move_on_after(1) as scope:
            async with session:
                raise AssertionError("opened")
        assert scope.cancelled_caught
    assert log == ["a entered", "leaves", "gone", "a left"]
    [failure] = session.cleanup_failures
    assert (failure.what, failure.module, failure.overran) == (
        "structured mount",
        "hooks-late",
        overran,
    )


async def test_error_of_cancelled_entering_is_reported(log):
    @asynccontextmanager
    async def mount(coordinator, config):
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("could not roll back")
        yield

    session = agent(hooks={"hooks-bad": mount})
    with anyio.move_on_after(1) as scope:
        async with session:
            raise AssertionError("opened")
    assert scope.cancelled_caught
    assert [(failure.module, str(failure.error)) for failure in session.cleanup_failures] == [
        ("hooks-bad", "could not roll back")
    ]


def crashing(trigger, error):
    """A structured mount whose inner task crashes when ``trigger`` is set."""

    @asynccontextmanager
    async def mount(coordinator, config):
        async def inner():
            await trigger.wait()
            raise error

        async with anyio.create_task_group() as group:
            group.start_soon(inner)
            yield

    return mount


async def test_crashed_hosted_module_is_contained(log, caplog):
    trigger = anyio.Event()
    hooks = {
        "hooks-a": structured(log, "a"),
        "hooks-crash": crashing(trigger, OSError("connection lost")),
    }
    session = agent(hooks=hooks)
    events = heard(session, "module:crashed")
    async with session:
        trigger.set()
        await anyio.sleep(1)
        assert await session.execute("still here") == "still here"
    [(_, data)] = events
    assert (data["module_id"], data["fatal"]) == ("hooks-crash", False)
    assert data["error_type"] == "ExceptionGroup"
    assert "hooks-crash" in caplog.text
    assert "connection lost" in caplog.text
    assert log == ["a entered", "a left"]
    assert session.cleanup_failures == []


async def test_structured_mount_needs_async_with(log):
    session = agent(hooks={"hooks-a": structured(log, "a")})
    await session.initialize()
    [failure] = session.failures
    assert "`async with`" in str(failure.error)
    assert isinstance(failure.error, SessionStateError)
    assert failure.error.__notes__ == ["raised by the mount of hook 'hooks-a'"]
    await session.cleanup()
    assert log == []


# ── coordinator.host ─────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def service(log, name):
    log.append(f"{name} entered")
    try:
        yield name
    finally:
        log.append(f"{name} left")


async def test_manually_hosted_manager_may_leave_early(log):
    async with agent() as session:
        leave = await session.coordinator.host(service(log, "a"))
        await session.coordinator.view_for("tool-x").host(service(log, "b"))
        await leave()
        await leave()
        assert log == ["a entered", "b entered", "a left"]
    assert log == ["a entered", "b entered", "a left", "b left"]


async def test_cancelled_entering_removes_manager(log, caplog):
    manager = entering_all_the_same(log, refuse_to_close)(None, {})
    async with agent() as session:
        with anyio.move_on_after(1) as scope:
            await session.coordinator.host(manager)
        assert scope.cancelled_caught
        assert log == ["leaves", "gone"]
        assert session.statistics().cleanups == 0
    assert "structured mount of the application failed: would not close" in caplog.text
    assert session.cleanup_failures == []


async def test_manual_hosting_error_is_callers():
    @asynccontextmanager
    async def broken(when):
        if when == "entering":
            raise LookupError(when)
        yield
        raise LookupError(when)

    async with agent() as session:
        with pytest.raises(LookupError, match="entering"):
            await session.coordinator.host(broken("entering"))
        leave = await session.coordinator.host(broken("leaving"))
        with pytest.raises(LookupError, match="leaving"):
            await leave()
    assert session.cleanup_failures == []


async def test_invented_cancellation_is_module_failure():
    cancelled = anyio.get_cancelled_exc_class()

    class Inventing:
        async def __aenter__(self):
            raise cancelled.__new__(cancelled)

        async def __aexit__(self, *args):
            return None

    async with agent() as session:
        with pytest.raises(Exception, match="although nothing was cancelled"):
            await session.coordinator.host(Inventing(), name="inventor")


async def test_half_entered_module_unwinds_before_its_cleanups(log):
    @asynccontextmanager
    async def mount(coordinator, config):
        coordinator.register_cleanup(lambda: log.append("cleanup"))
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            log.append("unwound")
        yield

    with anyio.move_on_after(2):
        async with agent(hooks={"hooks-a": mount}):
            raise AssertionError("opened")
    assert log == ["unwound", "cleanup"]


# ── background work ──────────────────────────────────────────────────────────────────────────────


async def test_background_work_survives_surrounding_cancellation(log):
    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            log.append("service stopped")

    async def mount(coordinator, config):
        coordinator.start_soon(work)

    with anyio.move_on_after(1):
        async with agent(
            hooks={"hooks-service": mount, "hooks-user": structured(log, "user", leaving=2)}
        ):
            await anyio.sleep_forever()
    assert log == ["user entered", "user left", "service stopped"]


async def test_background_crash_is_contained_and_announced(caplog):
    async def crash():
        await anyio.sleep(1)
        raise OSError("lost")

    async def mount(coordinator, config):
        coordinator.start_soon(crash, name="reader")

    session = agent(hooks={"hooks-a": mount})
    events = heard(session, "module:crashed")
    async with session:
        await anyio.sleep(2)
        assert await session.execute("still here") == "still here"
    [(_, data)] = events
    expected = {
        "module_id": "hooks-a",
        "task": "reader",
        "error": "lost",
        "error_type": "OSError",
        "fatal": False,
    }
    assert data.items() >= expected.items()
    assert "background task 'reader' of hooks-a crashed: lost" in caplog.text


@pytest.mark.parametrize(
    "error",
    [OSError("lost"), ExceptionGroup("several", [OSError()]), KeyboardInterrupt()],
    ids=repr,
)
async def test_fatal_crash_ends_session(log, error):
    async def crash():
        await anyio.sleep(1)
        raise error

    session = agent(hooks={"hooks-a": with_cleanup(log, "a")})
    events = heard(session, "module:crashed", "session:end")

    async def use():
        async with session:
            session.coordinator.view_for("hooks-a").start_soon(crash, fatal=True)
            await anyio.sleep_forever()

    with pytest.raises(type(error)) as caught:
        await use()
    assert caught.value is error
    assert log == ["a mounted", "a cleaned up"]
    assert [event for event, _ in events] == ["module:crashed", "session:end"]
    assert events[0][1]["fatal"] is True


async def test_body_error_survives_fatal_crash():
    async def crash():
        raise OSError("lost")

    with pytest.RaisesGroup(OSError, LookupError):
        async with agent() as session:
            session.coordinator.start_soon(crash, fatal=True)
            try:
                await anyio.sleep_forever()
            finally:
                raise LookupError("mine")


async def test_uncancellable_background_work_is_reported():
    done = []

    async def refuse():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(25)
        done.append("ended by itself")

    session = agent()
    async with session:
        session.coordinator.start_soon(refuse, name="stubborn")
        await anyio.lowlevel.checkpoint()
    assert done == ["ended by itself"]
    [failure] = session.cleanup_failures
    assert (failure.what, failure.overran) == ("background task 'stubborn'", True)


async def test_work_started_by_cleanup_is_stopped(log):
    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            log.append("stopped")

    async def start(coordinator):
        coordinator.start_soon(work)
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(60):
        async with agent() as session:
            session.coordinator.register_cleanup(lambda: start(session.coordinator))
    assert log == ["stopped"]


async def test_work_after_cleanup_is_refused(log):
    def fail():
        raise ValueError("broke")

    session = agent()
    coordinator = session.coordinator

    def on_failure(event, data):
        coordinator.register_cleanup(lambda: log.append("late cleanup"))
        try:
            coordinator.start_soon(anyio.sleep_forever)
        except SessionStateError as error:
            log.append(str(error))

    coordinator.hooks.register("cleanup:failed", on_failure)
    with anyio.fail_after(60):
        async with session:
            coordinator.register_cleanup(fail)
    assert log == [
        "start_soon(sleep_forever) comes too late: the session is closed",
        "late cleanup",
    ]


async def test_structured_module_leaves_before_cleanups():
    order: list[str] = []

    @asynccontextmanager
    async def structured(coordinator, config):
        coordinator.register_cleanup(lambda: order.append("cleanup"))
        yield
        order.append("left")

    async with agent(tools={"tool-a": structured}):
        pass
    assert order == ["left", "cleanup"]


# AnyIO has made the coroutine of the task, and leaves it to the garbage collector.
@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
@on_asyncio
async def test_background_task_cancelled_before_its_first_step_has_ended():
    """The end of a loop cancels every task, and this one never takes its first step."""
    session = agent()

    async def use() -> None:
        async with session:
            asyncio.get_running_loop().call_soon(cancel_all)
            session.coordinator.start_soon(anyio.sleep_forever)
            await anyio.sleep_forever()

    def cancel_all() -> None:
        for task in asyncio.all_tasks() - {main}:
            task.cancel()

    main = asyncio.current_task()
    user = asyncio.get_running_loop().create_task(use())
    await asyncio.wait([user])
    assert (user.cancelled(), session.cleanup_failures) == (True, [])
    gc.collect()
