"""Streams that meet: a second stream or reader, an abandoned text, the closing of the session, a child, another thread."""

from __future__ import annotations

import gc

import anyio
import anyio.lowlevel
import pytest

from amplifier import ExecutionCancelled, SessionBusyError, SessionStateError
from amplifier.kernel.session.stream import MAX_BUFFERED
from tests._support.small_agent import Turn, agent, takes

pytestmark = pytest.mark.virtual_time


async def emit_piece(turn: Turn, text: str = "piece") -> None:
    await turn.hooks.emit("content_block:delta", {"block_type": "text", "delta": text})


async def slow_to_stop(turn: Turn) -> str:
    """Streams its prompt, then waits for ever and takes a second to unwind."""
    await emit_piece(turn, turn.prompt)
    if turn.prompt == "quick":
        return "quick"
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)
    raise AssertionError("it waits for ever")


# ── a second turn ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["consumer", "turn"])
@pytest.mark.parametrize("second", ["stream", "text", "execute"])
async def test_refused_turn_takes_nothing_from_stream(where, second):
    async def begin(prompt: str) -> None:
        if second == "stream":
            async with session.stream(prompt):
                pass
        elif second == "text":
            await anext(session.stream_text(prompt))
        else:
            await session.execute(prompt)

    async def begin_another() -> None:
        with pytest.raises(SessionBusyError):
            await begin("another")

    async def body(turn: Turn) -> str:
        for number in range(3):
            await turn.hooks.emit("custom:event", {"number": number})
            if where == "turn":
                await begin_another()
            await anyio.sleep(1)
        return "done"

    numbers = []
    async with agent(body) as session, session.stream("go") as events:
        async for event in events:
            if event.name == "custom:event":
                numbers.append(event.data["number"])
                if where == "consumer":
                    await begin_another()
    assert (numbers, events.result) == ([0, 1, 2], "done")


async def test_text_closed_while_waiting_ends():
    got: list[str] = []
    async with agent(slow_to_stop) as session:
        async for _ in session.stream_text("abandoned"):
            break
        text = session.stream_text("quick")

        async def read() -> None:
            got.extend([piece async for piece in text])

        with takes(1):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                await text.aclose()
        assert got == []
        assert await session.execute("quick") == "quick"


async def test_second_waiting_text_is_refused():
    outcomes = []
    async with agent(slow_to_stop) as session:
        async for _ in session.stream_text("abandoned"):
            break

        async def read_one() -> None:
            try:
                async for piece in session.stream_text("next"):
                    outcomes.append(piece)
                    break
            except SessionBusyError as exc:
                outcomes.append(str(exc))

        async with anyio.create_task_group() as group:
            group.start_soon(read_one)
            group.start_soon(read_one)
        gc.collect()
        # The turn of the other was broken off, and the next one waits for its end.
        assert await session.execute("quick") == "quick"
    outcomes.remove("next")
    assert "a turn whose text is not read to its end" in outcomes[0]


# ── a second reader ──────────────────────────────────────────────────────────────────────────────


async def test_second_reader_of_beginning_text_is_refused():
    async def body(turn: Turn) -> str:
        await emit_piece(turn, "Hello")
        await anyio.sleep(1)
        return "Hello"

    got = []
    async with agent(body) as session:
        text = session.stream_text("hi")

        async def read() -> None:
            try:
                got.extend([piece async for piece in text])
            except SessionStateError as exc:
                got.append(str(exc)[:26])

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
    assert sorted(got) == ["Hello", "a stream has one reader, a"]
    assert text.result == "Hello"


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_text_is_not_closed_on_other_loop(other):
    async def body(turn: Turn) -> str:
        await emit_piece(turn, "Hel")
        await anyio.lowlevel.checkpoint()
        await emit_piece(turn, "lo")
        return "Hello"

    async with agent(body) as session:
        text = session.stream_text("hi")
        assert await anext(text) == "Hel"

        async def close_there() -> None:
            with (
                anyio.fail_after(5),
                pytest.raises(SessionStateError, match="this is another thread"),
            ):
                await text.aclose()

        await anyio.to_thread.run_sync(lambda: anyio.run(close_there, backend=other))
        assert [piece async for piece in text] == ["lo"]


# ── a slow reader ────────────────────────────────────────────────────────────────────────────────


async def test_reader_closing_session_ignores_shielded_emitter():
    async def body(turn: Turn) -> str:
        with anyio.CancelScope(shield=True):
            for _ in range(2 * MAX_BUFFERED):
                await emit_piece(turn)
        return "done"

    async with agent(body) as session, session.stream("go") as events:
        await anyio.sleep(1)
        with takes(0):
            await session.cleanup()
        with pytest.raises(ExecutionCancelled, match="its session was closed"):
            assert [event async for event in events]
    assert session.cleanup_failures == []


async def test_slow_reader_keeps_terminal_child_events(caplog):
    async def body(turn: Turn) -> str:
        if turn.prompt == "child":
            async with anyio.create_task_group() as group:
                group.start_soon(emit_pieces, turn)
                # Now its parent's reader is far behind.
                await anyio.sleep(1)
                await turn.hooks.emit("execution:end", {})
            return "done"

        async def pass_on(event: str, data: object) -> None:
            await turn.hooks.emit("sub_agent:event", {"event": event})

        async with turn.coordinator.session.fork() as child:
            child.coordinator.hooks.register("*", pass_on, timeout=None)
            return await child.execute("child")

    async def emit_pieces(turn: Turn) -> None:
        for _ in range(MAX_BUFFERED):
            await turn.hooks.emit("child:piece", {})

    async with agent(body) as session, session.stream("go") as events:
        await anyio.sleep(20)
        seen = [event.data["event"] async for event in events if event.name == "sub_agent:event"]
    assert (seen.count("child:piece"), seen.count("execution:end")) == (MAX_BUFFERED, 1)
    assert "overran its deadline" not in caplog.text
