"""A turn as a stream: typed events, the result, errors from the iteration, leaving early, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import anyio.lowlevel
import pytest

from amplifier import ExecutionCancelled, SessionBusyError, SessionStateError
from amplifier.errors import SpuriousCancellation
from amplifier.kernel.session.stream import MAX_BUFFERED
from amplifier.models import TextDelta, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from tests._support.small_agent import Turn, agent, give_up_after
from tests.kernel.backends_alone import loop_turns, on_asyncio

pytestmark = pytest.mark.virtual_time


def emitting(*events):
    async def body(turn: Turn):
        for name, data in events:
            await turn.hooks.emit(name, data)
        return f"answer to {turn.prompt}"

    return body


async def wait_for_ever(turn):
    await turn.hooks.emit("custom:event", {})
    await anyio.sleep_forever()


def unwinding(log, seconds):
    """A turn that waits for ever, and takes its time to unwind."""

    async def body(turn):
        try:
            await wait_for_ever(turn)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
            log.append("unwound")

    return body


def counting(log, times):
    """A turn that emits so many numbers and notes each that was taken."""

    async def body(turn):
        for number in range(times):
            await turn.hooks.emit("custom:event", {"number": number})
            log.append(number)
        return "done"

    return body


async def drain(stream):
    return [event async for event in stream]


# ── events and result ────────────────────────────────────────────────────────────────────────────


async def test_typed_events_in_order_then_result():
    body = emitting(
        ("content_block:delta", {"block_type": "text", "delta": "Hel"}),
        ("content_block:delta", {"block_type": "tool_call", "delta": "{"}),
        ("thinking:delta", {"delta": "hmm"}),
        ("tool:pre", {"tool_name": "bash", "tool_call_id": "1", "tool_input": {"command": "ls"}}),
        ("tool:post", {"tool_name": "bash", "tool_call_id": "1", "result": {"success": True}}),
        ("tool:post", {"tool_name": "bash", "tool_call_id": "2", "result": {"success": False}}),
        ("tool:error", {"tool_name": "web", "tool_call_id": "3", "error": {}}),
        ("custom:event", {"k": 1}),
    )
    async with agent(body) as session:
        events = session.stream("hi")
        assert events.result is None
        async with events:
            seen = await drain(events)
    assert events.result == "answer to hi"
    assert [type(event) for event in seen] == [
        TurnEvent,
        TextDelta,
        TurnEvent,
        ThinkingDelta,
        ToolStarted,
        ToolFinished,
        ToolFinished,
        ToolFinished,
        TurnEvent,
    ]
    assert [event.name for event in seen][:2] == ["session:start", "content_block:delta"]
    assert (seen[1].text, seen[3].text) == ("Hel", "hmm")
    assert (seen[4].tool_name, seen[4].tool_call_id, seen[4].tool_input) == (
        "bash",
        "1",
        {"command": "ls"},
    )
    assert [(event.tool_call_id, event.success) for event in seen[5:8]] == [
        ("1", True),
        ("2", False),
        ("3", False),
    ]
    assert seen[8].data["k"] == 1
    assert seen[8].data["session_id"] == session.session_id


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("content_block:delta", {"block_type": "text", "delta": None}),
        ("thinking:delta", {}),
        ("tool:pre", {"tool_input": "not a dict"}),
        ("tool:post", {"result": "not a dict", "tool_name": None}),
        ("tool:error", {}),
    ],
)
async def test_payload_of_any_shape_makes_event(name, data):
    async with agent(emitting((name, data))) as session, session.stream("hi") as events:
        seen = await drain(events)
    assert seen[-1].name == name
    assert events.result == "answer to hi"


async def test_stream_sees_final_payloads():
    async with agent(emitting(("custom:event", {"k": 1}))) as session:
        session.coordinator.hooks.register(
            "custom:event",
            lambda event, data: {"action": "modify", "data": {"k": 2}},
            priority=10_000,
        )
        async with session.stream("hi") as events:
            seen = await drain(events)
    assert seen[-1].data["k"] == 2


async def test_denied_event_is_not_streamed():
    """The listener is gone after the turn."""
    async with agent(emitting(("custom:event", {}))) as session:
        hooks = session.coordinator.hooks
        hooks.register("custom:event", lambda event, data: {"action": "deny"})
        async with session.stream("hi") as events:
            seen = await drain(events)
        assert [event.name for event in seen] == ["session:start"]
        assert hooks.list_handlers("*") == {"*": []}


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error", [ValueError("broke"), ExceptionGroup("g", [OSError()]), KeyboardInterrupt()], ids=repr
)
async def test_turn_error_is_raised_unchanged(error, log):
    async def body(turn):
        await turn.hooks.emit("custom:event", {})
        raise error

    async with agent(body) as session:
        stream = session.stream("hi")

        async def read():
            async with stream as events:
                async for event in events:
                    log.append(event.name)

        with pytest.raises(type(error)) as caught:
            await read()
        assert caught.value is error
        assert stream.result is None
    ended = ["cancel:completed"] if isinstance(error, KeyboardInterrupt) else []
    assert log == ["session:start", "custom:event", *ended]


async def test_unread_error_is_raised_at_exit():
    async def body(turn):
        raise ValueError("broke")

    async with agent(body) as session:
        with pytest.raises(ValueError, match="broke"):
            async with session.stream("hi"):
                await anyio.sleep(1)


async def test_block_error_is_not_replaced(log):
    async with agent(unwinding(log, 0)) as session:

        async def leave():
            async with session.stream("hi"):
                await anyio.sleep(1)
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await leave()
        assert log == ["unwound"]


async def test_invented_cancellation_is_not_success():
    async def body(turn):
        raise asyncio.CancelledError

    async with agent(body) as session:
        with pytest.raises(SpuriousCancellation):
            async with session.stream("hi") as events:
                await drain(events)


@pytest.mark.parametrize(
    ("prompt", "options"), [(None, {}), ("hi", {"timeout": 0}), ("hi", {"timeout": "x"})]
)
async def test_wrong_arguments_leave_session_ready(prompt, options):
    async with agent() as session:
        with pytest.raises((TypeError, ValueError)):
            async with session.stream(prompt, **options) as events:
                await drain(events)
        assert await session.execute("hi") == "hi"
        assert session.coordinator.hooks.list_handlers("*") == {"*": []}


# ── the claim of the turn ────────────────────────────────────────────────────────────────────────


async def test_entered_stream_holds_session():
    release = anyio.Event()

    async def body(turn):
        await release.wait()
        return "outer"

    async with agent(body) as session:
        async with session.stream("outer") as events:
            assert session.statistics().turn_running
            with pytest.raises(SessionBusyError):
                await session.execute("inner")
            with pytest.raises(SessionBusyError):
                await session.resume_turn()
            with pytest.raises(SessionBusyError):
                async with session.stream("second") as second:
                    await drain(second)
            release.set()
            await drain(events)
        assert events.result == "outer"
        assert await session.execute("next") == "outer"


@pytest.mark.parametrize("how", ["left", "error", "cancelled", "native"])
async def test_unstarted_stream_releases_session(how):
    async def leave():
        async with session.stream("hi"):
            if how == "error":
                raise LookupError("mine")

    async with agent() as session:
        if how == "error":
            with pytest.raises(LookupError):
                await leave()
        elif how in ("left", "native"):
            await (give_up_after(0, "native", leave) if how == "native" else leave())
        else:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await leave()
        assert not session.statistics().turn_running
        assert await session.execute("next") == "next"


@pytest.mark.parametrize("wait", [False, True])
async def test_closing_cancels_just_entered_stream(wait, log):
    async def body(turn):
        log.append("begun")
        await anyio.sleep_forever()

    session = agent(body)
    await session.initialize()

    async def read():
        async with session.stream("hi") as events:
            if wait:
                await anyio.lowlevel.checkpoint()
            await session.cleanup()
            await drain(events)

    with anyio.fail_after(5), pytest.raises(ExecutionCancelled, match="its session was closed"):
        await read()


# ── leaving early ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["break", "cancelled"])
async def test_early_leave_waits_for_unwinding(how, log):
    async with agent(unwinding(log, 3)) as session:
        if how == "break":
            async with session.stream("hi") as events:
                async for _ in events:
                    break
        else:
            with anyio.move_on_after(1):
                async with session.stream("hi") as events:
                    await drain(events)
        assert log == ["unwound"]
        assert events.result is None
        assert session.status.status == "cancelled"
        assert session.coordinator.hooks.list_handlers("*") == {"*": []}


# ── back-pressure ────────────────────────────────────────────────────────────────────────────────


async def test_full_buffer_makes_turn_wait(log):
    async with agent(counting(log, MAX_BUFFERED * 2)) as session, session.stream("hi") as events:
        await anyio.sleep(1000)
        assert len(log) in range(MAX_BUFFERED - 2, MAX_BUFFERED + 1)
        seen = []
        async for event in events:
            seen.append(event.data.get("number"))
            await anyio.sleep(1)
    assert seen[1:] == list(range(MAX_BUFFERED * 2))
    assert events.result == "done"


async def test_slow_reader_loses_no_terminal_event():
    """Terminal events have five seconds to be delivered; a reader that takes longer must find them in the buffer."""

    async def body(turn):
        for number in range(MAX_BUFFERED + 10):
            await turn.hooks.emit("custom:event", {"number": number})
        for number in range(MAX_BUFFERED + 10):
            await turn.hooks.emit("tool:error", {"tool_call_id": str(number)})
        return "done"

    async with agent(body) as session, session.stream("hi") as events:
        seen = []
        async for event in events:
            await anyio.sleep(20)
            if isinstance(event, ToolFinished):
                seen.append(event.tool_call_id)
    assert seen == [str(number) for number in range(MAX_BUFFERED + 10)]


# ── events that the turn did not emit ────────────────────────────────────────────────────────────


async def emit_here(hooks):
    await hooks.emit("consumer:event", {})


async def emit_in_a_task(hooks):
    async with anyio.create_task_group() as group:
        group.start_soon(hooks.emit, "consumer:event", {})


async def emit_in_a_task_of_before(hooks):
    """In a task that was started before the stream was entered, and that the consumer waits for."""
    await hooks.emit("ask the background", {})


async def background(coordinator, config):
    """A module that emits from background work when it is asked, and has the asking one wait for it."""
    send, receive = anyio.create_memory_object_stream[anyio.Event](0)

    async def work():
        with receive:
            async for done in receive:
                await coordinator.hooks.emit("consumer:event", {})
                done.set()

    async def ask(event, data):
        done = anyio.Event()
        await send.send(done)
        await done.wait()

    coordinator.hooks.register("ask the background", ask)
    coordinator.start_soon(work)
    return send.close


@pytest.mark.parametrize("emit", [emit_here, emit_in_a_task, emit_in_a_task_of_before])
async def test_emitting_consumer_does_not_deadlock(emit, log):
    turn = counting(log, MAX_BUFFERED * 2)
    async with (
        agent(turn, hooks={"hooks-a": background}) as session,
        session.stream("hi") as events,
    ):
        await anyio.sleep(1000)
        ahead = len(log)
        assert ahead < MAX_BUFFERED * 2
        with anyio.fail_after(10):
            for _ in range(3):
                await emit(session.coordinator.hooks)
        seen = []
        async for event in events:
            seen.append(event)
            await anyio.sleep(1)
    assert events.result == "done"
    assert [event.data["number"] for event in seen if event.name == "custom:event"] == list(
        range(MAX_BUFFERED * 2)
    )
    assert sum(event.name == "consumer:event" for event in seen) == 3


async def test_reading_own_events_keeps_turn_waiting(log):
    go = anyio.Event()

    async def body(turn):
        await go.wait()
        await counting(log, MAX_BUFFERED * 2)(turn)

    async with agent(body) as session, session.stream("hi") as events:
        assert (await anext(events)).name == "session:start"
        for _ in range(10):
            await session.coordinator.hooks.emit("consumer:event", {})
        go.set()
        await anyio.sleep(1000)
        ahead = len(log)
        for _ in range(10):
            assert (await anext(events)).name == "consumer:event"
        await anyio.sleep(1000)
        assert len(log) == ahead
        assert (await anext(events)).name == "custom:event"
        await anyio.sleep(1000)
        assert len(log) == ahead + 1


async def test_turn_tasks_wait_for_slow_reader(log):
    async def body(turn):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(counting(log, MAX_BUFFERED), turn)
        return "done"

    async with agent(body) as session, session.stream("hi") as events:
        await anyio.sleep(1000)
        assert len(log) <= MAX_BUFFERED
        await drain(events)
    assert events.result == "done"


# ── leaving with an error while being cancelled ──────────────────────────────────────────────────


@pytest.mark.parametrize("error", [LookupError("mine"), None], ids=["by an error", "without one"])
@pytest.mark.parametrize("how", ["scope", "native"])
async def test_stop_and_block_error(how, error, log, anyio_backend_name):
    async with agent(unwinding(log, 5)) as session:

        async def leave():
            try:
                async with session.stream("hi"):
                    await anyio.sleep(0.5)  # the turn has begun
                    if error is not None:
                        raise error
            except LookupError as caught:
                log.append(str(caught))
            try:
                await anyio.sleep(100)
            except anyio.get_cancelled_exc_class():
                if error is not None:
                    log.append("cancelled")
                raise
            log.append("not reached")

        await give_up_after(1, how, leave)
        # A native cancel comes once, so it replaces the block's error. A scope's comes again.
        is_raised = error is not None and (how == "scope" or anyio_backend_name == "trio")
        assert log == ["unwound", *(["mine", "cancelled"] if is_raised else [])]
        assert session.status.status == "cancelled"
        assert session.coordinator.hooks.list_handlers("*") == {"*": []}
        await anyio.sleep(1)  # no cancellation is left over


# ── wrong use ────────────────────────────────────────────────────────────────────────────────────


async def test_stream_is_entered_once():
    async with agent() as session:
        stream = session.stream("hi")
        with pytest.raises(SessionStateError, match="enter the stream first"):
            await stream.__anext__()
        async with stream as events:
            assert events is stream
            assert aiter(stream) is stream
            with pytest.raises(SessionStateError, match="a stream can be entered once"):
                async with stream:
                    pass
            await drain(events)
        with pytest.raises(SessionStateError, match="entered once"):
            async with stream:
                pass
        assert events.result == "hi"


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


async def test_stream_left_in_other_task_is_reported(log):
    entered, release = anyio.Event(), anyio.Event()

    async with agent(unwinding(log, 0)) as session:
        stream = session.stream("hi")

        async def enter() -> None:
            await stream.__aenter__()
            entered.set()
            await release.wait()

        async def both() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(enter)
                await entered.wait()
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(
                    SessionStateError, match="must be left in the task that entered it"
                ):
                    await stream.__aexit__(None, None, None)
                while session.statistics().turn_running:
                    await anyio.lowlevel.checkpoint()
                log.append("ended")
                release.set()

        # The task that entered ends with an open task group, which AnyIO and trio report in their own way.
        with contextlib.suppress(Exception):
            await both()
    assert log == ["unwound", "ended"]


@pytest.mark.filterwarnings(
    "ignore:coroutine 'TurnStream._run' was never awaited:RuntimeWarning"
)  # AnyIO wraps it
@on_asyncio
async def test_cancelled_stream_task_ends_with_error():
    async with agent(wait_for_ever) as session:
        async with session.stream("hi") as events:
            await loop_turns()
            (task,) = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            task.cancel()
            with (
                anyio.fail_after(60),
                pytest.raises(ExecutionCancelled, match="its task was cancelled"),
            ):
                await drain(events)
        assert events.result is None


# ── the way of an event ──────────────────────────────────────────────────────────────────────────


async def test_ready_events_are_read_without_waiting():
    """A reader that is behind takes all of them in one go: no other task runs in between."""
    names = [f"custom:{number}" for number in range(20)]
    async with (
        agent(emitting(*((name, {}) for name in names))) as session,
        session.stream("hi") as events,
    ):
        await anyio.sleep(1)
        rounds = 0

        async def count():
            nonlocal rounds
            while True:
                rounds += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            await anyio.lowlevel.checkpoint()
            before = rounds
            assert [(await anext(events)).name for _ in range(21)] == ["session:start", *names]
            assert (rounds, events.has_ready) == (before, False)
            group.cancel_scope.cancel()


async def test_cancelled_reader_takes_nothing_more():
    async with agent(emitting(("custom:event", {}))) as session, session.stream("hi") as events:
        await anyio.sleep(1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(events)
        assert scope.cancelled_caught
        assert [event.name for event in await drain(events)] == ["session:start", "custom:event"]


async def test_listener_lives_as_long_as_turn(log):
    async def body(turn):
        hooks = turn.hooks
        log.append(
            [hooks.has_handlers("custom:event"), hooks.has_handlers("provider:request", "messages")]
        )
        return "done"

    async with agent(body) as session:
        async with session.stream("hi") as events:
            await drain(events)
        async for _ in session.stream_text("hi"):
            pass
        await session.execute("hi")
        hooks = session.coordinator.hooks
        assert log == [[True, True], [False, False], [False, False]]
        assert not hooks.has_handlers("custom:event")


async def test_streamed_payload_is_identified_copy():
    mine = {"list": [1]}

    async def body(turn):
        result = await turn.hooks.emit("custom:event", mine)
        mine["list"].append(2)
        return str(sorted(result.data))

    async with agent(body) as session:
        session.coordinator.hooks.set_default_fields(house="ours")
        async with session.stream("hi") as events:
            seen = (await drain(events))[-1]
        # The emitter gets what it passed, as without a stream.
        assert events.result == "['list']"
    assert (seen.data["list"], seen.data["house"]) == ([1], "ours")
    assert (seen.data["session_id"], "timestamp" in seen.data) == (session.session_id, True)


async def test_collected_events_are_streamed():
    async def body(turn):
        await turn.hooks.emit_and_collect("custom:event", {"k": 1})
        return "done"

    async with agent(body) as session, session.stream("hi") as events:
        seen = await drain(events)
    assert [event.name for event in seen] == ["session:start", "custom:event"]
    assert seen[1].data["k"] == 1
