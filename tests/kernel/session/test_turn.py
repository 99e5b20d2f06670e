"""One turn: what the orchestrator is given, the events before and after, and all the ways it ends. Time is virtual."""

from __future__ import annotations

import functools

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier import ExecutionCancelled, ExecutionTimeout
from amplifier.errors import ContainedError, SpuriousCancellation
from tests._support.cancellations import some_cancellation
from tests._support.small_agent import agent, heard, let_time_pass, takes

pytestmark = pytest.mark.virtual_time


def executing(function):
    """A session whose orchestrator has this ``execute``."""

    class Orchestrator:
        execute = function

    return agent(orchestrator=mounting_as_is(Orchestrator()))


def mounting_as_is(orchestrator):
    async def mount(coordinator, config):
        coordinator.mount("orchestrator", orchestrator)

    return mount


async def wait_for_ever(turn):
    await anyio.sleep_forever()


def names(events):
    return [event for event, _ in events]


async def after(seconds, fn, *args, **options):
    await anyio.sleep(seconds)
    fn(*args, **options)


# ── what the orchestrator is given ───────────────────────────────────────────────────────────────


async def takes_prompt(self, prompt):
    return f"{prompt} only"


async def takes_keywords(self, prompt, *, tools, **rest):
    return ",".join(sorted(rest))


async def takes_five(self, prompt, context, providers, tools, hooks):
    return "five"


def is_sync(self, prompt):
    return "sync"


def returns_awaitable(self, prompt):
    return takes_prompt(self, prompt)


@functools.wraps(takes_prompt)
async def is_wrapped(*args, **kwargs):
    return ",".join(sorted(kwargs))


@pytest.mark.parametrize(
    ("execute", "answer"),
    [
        (takes_prompt, "hi only"),
        (takes_keywords, "context,coordinator,hooks,providers"),
        (takes_five, "five"),
        (is_sync, "sync"),
        (returns_awaitable, "hi only"),
        (is_wrapped, "prompt"),
        (staticmethod(functools.partial(takes_prompt, None)), "hi only"),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else value,
)
async def test_orchestrator_gets_accepted_keywords_only(execute, answer):
    async with executing(execute) as session:
        assert await session.execute("hi") == answer


async def test_callable_without_signature_gets_everything():
    class Odd:
        __signature__ = "not a signature"

        async def __call__(self, **keywords):
            return ",".join(sorted(keywords))

    async with executing(Odd()) as session:
        assert await session.execute("hi") == "context,coordinator,hooks,prompt,providers,tools"


# ── events before a turn ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_resumed", "event"), [(False, "session:start"), (True, "session:resume")]
)
async def test_first_turn_announces_session_metadata_once(is_resumed, event):
    session = agent(session={"metadata": {"k": 1}}, is_resumed=is_resumed, session_id="s")
    events = heard(session)
    async with session:
        assert names(events) == []
        for _ in range(3):
            await session.execute("hi")
    assert names(events) == [event, "session:end"]
    assert (
        events[0][1].items() >= {"session_id": "s", "parent_id": None, "metadata": {"k": 1}}.items()
    )


async def test_denial_of_start_is_ignored():
    async with agent() as session:
        session.coordinator.hooks.register("session:start", lambda event, data: {"action": "deny"})
        assert await session.execute("hi") == "hi"


# ── how it ends: errors ──────────────────────────────────────────────────────────────────────────


class Panic(BaseException):
    """What an extension written in Rust raises when it panics."""


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), Panic("unreachable"), BaseExceptionGroup("g", [SystemExit(3)])],
    ids=repr,
)
async def test_orchestrator_base_exception_is_named_failure(error):
    async def body(turn):
        await anyio.lowlevel.checkpoint()
        raise error

    async with agent(body) as session:
        with pytest.raises(
            ContainedError, match=f"orchestrator Loop raised {type(error).__name__}"
        ) as caught:
            await session.execute("hi")
        assert caught.value.__cause__ is error
        assert session.status.status == "failed"


async def test_invented_cancellation_is_named_failure():
    async def body(turn):
        raise await some_cancellation()

    async with agent(body) as session:
        with pytest.raises(SpuriousCancellation, match="orchestrator Loop raised"):
            await session.execute("hi")
        assert session.status.status == "failed"


@pytest.mark.parametrize("how", ["raised", "raised in a group", "cancelled"])
async def test_ctrl_c_ends_turn_as_cancelled(how):
    """A loop of asyncio cancels its main task at Ctrl-C; trio raises the exception inside of it, or of a tool beside others."""
    interrupt = (
        KeyboardInterrupt()
        if how == "raised"
        else BaseExceptionGroup("tools", [KeyboardInterrupt()])
    )

    async def body(turn):
        if how != "cancelled":
            raise interrupt
        await anyio.sleep_forever()

    async with agent(body) as session:
        events = heard(session, "cancel:completed")
        if how != "cancelled":
            with pytest.raises(KeyboardInterrupt) as caught:
                await session.execute("hi")
            assert interrupt in (caught.value, caught.value.__cause__)
        else:
            with anyio.CancelScope() as scope:
                session.coordinator.hooks.register(
                    "session:start", lambda event, data: scope.cancel()
                )
                await session.execute("hi")
        assert (session.status.status, session.status.last_error) == ("cancelled", None)
    assert [data["was_immediate"] for _, data in events] == [True]


# ── how it ends: time ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("plan", "given", "seconds"), [(None, 5, 5), (7, "left out", 7), (7, 3, 3), (7, 9, 9)], ids=repr
)
async def test_turn_timeout_precedes_plan_deadline(plan, given, seconds):
    session = agent(wait_for_ever, session={"deadlines": {"turn": plan}})
    events = heard(session, "cancel:requested", "cancel:completed")
    options = {} if given == "left out" else {"timeout": given}
    async with session:
        with takes(seconds), pytest.raises(ExecutionTimeout, match=f"within {seconds} s") as caught:
            await session.execute("hi", **options)
        assert (caught.value.seconds, caught.value.session_id) == (seconds, session.session_id)
        assert isinstance(caught.value, TimeoutError)
        assert session.status.status == "cancelled"
        assert names(events) == ["cancel:completed"]
        assert not session.coordinator.cancellation.is_cancelled


async def test_timeout_of_none_lifts_plan_deadline():
    async def body(turn):
        await anyio.sleep(50)
        return "late but fine"

    async with agent(body, session={"deadlines": {"turn": 7}}) as session:
        assert await session.execute("hi", timeout=None) == "late but fine"


async def sleep_under_a_shield():
    with anyio.CancelScope(shield=True):
        await anyio.sleep(9)


async def block():
    let_time_pass(9)


@pytest.mark.parametrize("overrun", [sleep_under_a_shield, block])
async def test_unnoticed_overrun_is_late(overrun):
    async def body(turn):
        await overrun()
        return "too late"

    session = agent(body)
    events = heard(session, "cancel:completed")
    async with session:
        with pytest.raises(ExecutionTimeout):
            await session.execute("hi", timeout=5)
        assert session.status.status == "cancelled"
    assert len(events) == 1


async def test_orchestrator_timeout_is_not_kernels():
    async def body(turn):
        with anyio.fail_after(1):
            await anyio.sleep_forever()

    async with agent(body) as session:
        with pytest.raises(TimeoutError) as caught:
            await session.execute("hi", timeout=5)
        assert not isinstance(caught.value, ExecutionTimeout)
        assert session.status.status == "failed"


# ── how it ends: an immediate stop ───────────────────────────────────────────────────────────────


async def test_unwinding_error_propagates_and_is_recorded():
    async def body(turn):
        turn.coordinator.request_cancel(immediate=True)
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("could not unwind")

    session = agent(body)
    events = heard(session, "cancel:completed")
    async with session:
        with pytest.raises(OSError, match="could not unwind"):
            await session.execute("hi")
        assert session.status.status == "cancelled"
    assert "OSError: could not unwind" in events[0][1]["error"]


async def test_token_reset_is_required_before_turn(log):
    async def body(turn):
        log.append("ran")
        return "done"

    async with agent(body) as session:
        session.coordinator.request_cancel(immediate=True)
        for _ in range(2):
            with pytest.raises(
                ExecutionCancelled, match=r"stopped before it began; call cancellation\.reset"
            ):
                await session.execute("hi")
        assert log == []
        session.coordinator.cancellation.reset()
        assert await session.execute("hi") == "done"


# ── how it ends: a graceful stop ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("opened", ["async with", "by hand"])
async def test_expired_grace_makes_stop_immediate(opened):
    session = agent(wait_for_ever)
    events = heard(session, "cancel:requested", "cancel:completed")

    async def run():
        async with anyio.create_task_group() as group:
            group.start_soon(after, 2, session.coordinator.cancellation.request_graceful, 5)
            with pytest.raises(ExecutionCancelled, match="the grace of a graceful stop ran out"):
                await session.execute("hi")
            assert anyio.current_time() - began == pytest.approx(7)

    began = anyio.current_time()
    if opened == "by hand":
        await session.initialize()
        await run()
        await session.cleanup()
    else:
        async with session:
            await run()
    assert names(events) == ["cancel:requested", "cancel:requested", "cancel:completed"]
    assert [data.get("state") for _, data in events] == ["graceful", "immediate", None]


async def test_grace_of_ended_turn_is_dropped():
    async def body(turn):
        await anyio.sleep(3)
        return "done"

    async with agent(body) as session:
        session.coordinator.cancellation.request_graceful(5)
        assert await session.execute("hi") == "done"
        session.coordinator.cancellation.reset()
        assert await session.execute("hi") == "done"
        assert await session.execute("hi") == "done"
        assert session.status.status == "completed"


@pytest.mark.parametrize("opened", ["async with", "by hand"])
async def test_request_before_closing_is_announced(opened):
    session = agent()
    events = heard(session)
    if opened == "async with":
        async with session:
            session.coordinator.request_cancel()
    else:
        await session.initialize()
        session.coordinator.request_cancel()
        await session.cleanup()
    assert names(events) == ["cancel:requested", "session:end"]


async def test_callbacks_run_once_per_state_change(log):
    session = agent(wait_for_ever)
    token = session.coordinator.cancellation
    token.on_cancel(lambda: log.append(token.state))
    async with session, anyio.create_task_group() as group:
        group.start_soon(after, 1, token.request_graceful)
        group.start_soon(after, 2, token.request_immediate)
        group.start_soon(after, 2, token.request_immediate)
        with pytest.raises(ExecutionCancelled):
            await session.execute("hi")
    assert log == ["graceful", "immediate"]


async def test_token_reset_does_not_hide_stop():
    session = agent(wait_for_ever)
    token = session.coordinator.cancellation
    session.coordinator.hooks.register("cancel:completed", lambda event, data: token.reset())
    async with session:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                group.start_soon(after, 1, token.request_immediate)
                with pytest.raises(ExecutionCancelled):
                    await session.execute("hi")


async def test_grace_ends_with_turn():
    async def body(turn):
        turn.coordinator.cancellation.request_graceful(5)
        await anyio.sleep(1)
        return "done"

    async with agent(body) as session:
        assert await session.execute("go") == "done"
        await anyio.sleep(10)
        assert session.coordinator.cancellation.state == "graceful"


async def test_slow_announcement_of_a_request_comes_before_the_end():
    async def be_slow(event, data):
        await anyio.sleep(3)

    session = agent(wait_for_ever)
    session.coordinator.hooks.register("cancel:requested", be_slow)
    events = heard(session, "cancel:requested", "cancel:completed")
    async with session:
        with anyio.move_on_after(2):
            async with anyio.create_task_group() as group:
                group.start_soon(after, 1, session.coordinator.cancellation.request_graceful)
                await session.execute("hi")
        assert names(events) == ["cancel:requested", "cancel:completed"]


async def test_grace_that_began_in_the_opening_ends_with_it():
    async def mount(coordinator, config):
        coordinator.cancellation.request_graceful(5)
        await anyio.sleep(1)

    async with agent(hooks={"hooks-a": mount}) as session:
        await anyio.sleep(10)
        assert session.coordinator.cancellation.state == "graceful"
