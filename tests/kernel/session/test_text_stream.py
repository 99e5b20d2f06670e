"""The text of a turn, piece by piece: `session.stream_text`, and the ways to leave it."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession, SessionBusyError, SessionStateError
from amplifier.agents import agent as ready_agent
from amplifier.kernel.session.stream import MAX_BUFFERED
from amplifier.models import AnswerReset, TextDelta
from amplifier.models.turns import BEGINS_AGAIN, TurnText
from amplifier.testing import MockProvider, ScriptedOrchestrator
from tests._support.small_agent import Turn, agent

pytestmark = pytest.mark.virtual_time


def pieces(*texts: str, then: str = "answer", log: list[str] | None = None):
    """A turn that streams texts, waits for ever after them if it notes its end in a log, and then answers."""

    async def body(turn: Turn):
        for text in texts:
            await turn.hooks.emit("content_block:delta", {"block_type": "text", "delta": text})
        if log is not None and turn.prompt != "again":
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
                log.append("unwound")
        return then

    return body


async def read(stream) -> list[str]:
    return [piece async for piece in stream]


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


async def test_pieces_are_followed_by_result():
    async with agent(pieces("Hel", "", "lo", then="Hello")) as session:
        text = session.stream_text("hi")
        assert text.result is None
        assert await read(text) == ["Hel", "lo"]
        assert text.result == "Hello"
        assert await read(text) == []
        async with session.stream_text("hi") as again:
            assert await read(again) == ["Hel", "lo"]


class Whole:
    """A provider that does not stream."""

    def __init__(self, *turns: Any) -> None:
        self._inner = MockProvider(turns)
        self.name = "whole"
        self.get_info, self.list_models = self._inner.get_info, self._inner.list_models
        self.complete, self.parse_tool_calls = self._inner.complete, self._inner.parse_tool_calls


@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming", "loop-events"])
async def test_unstreamed_answers_are_single_pieces(loop):
    async def look() -> str:
        """Look."""
        return "seen"

    plan = {"session": {"orchestrator": {"module": loop}}}
    model = Whole(["Let me look.", ("look", {})], "It rains today.")
    async with ready_agent(model, tools=[look], plan=plan) as session:
        assert await read(session.stream_text("hi")) == ["Let me look.", "\n\nIt rains today."]
    model = Whole("It rains today.")
    async with ready_agent(model, plan=plan) as session, session.stream("hi") as events:
        assert [event.text async for event in events if isinstance(event, TextDelta)] == [
            "It rains today."
        ]


async def test_result_without_events_is_one_piece():
    plan = {
        "session": {
            "orchestrator": ScriptedOrchestrator(["the answer"]),
            "context": "context-simple",
        }
    }
    async with AmplifierSession(plan) as session:
        assert await read(session.stream_text("hi")) == ["the answer"]


async def test_published_whole_blocks_become_text_once():
    async def report(turn: Turn) -> str:
        for kind, index, text in [("delta", 0, "one"), ("end", 0, "one"), ("end", 1, " two")]:
            block = {"type": "text", "text": text}
            data = {"block_index": index, "block_type": "text", "delta": text, "block": block}
            await turn.hooks.emit(f"content_block:{kind}", data)
        return "one two"

    async with agent(report) as session:
        assert await read(session.stream_text("hi")) == ["one", " two"]


def test_void_text_is_announced_once():
    text = TurnText()
    assert text.add(TextDelta(name="content_block:delta", data={}, text="one two")) == "one two"
    reset = AnswerReset(name="content_block:reset", data={}, text="one two")
    assert (text.add(reset), text.add(reset), text.rest("one two")) == (BEGINS_AGAIN, "", "")


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


async def test_turn_errors_leave_session_usable():
    async def fail(turn: Turn):
        if turn.prompt == "fail":
            raise KeyError("no such thing")
        return "fine"

    async with agent(fail) as session:
        with pytest.raises(KeyError, match="no such thing"):
            await read(session.stream_text("fail"))
        with pytest.raises(TypeError, match="a prompt must be a str"):
            await read(session.stream_text(7))  # type: ignore[arg-type]
        assert await session.execute("again") == "fine"
    with pytest.raises(SessionStateError, match="not initialized"):
        await read(session.stream_text("hi"))


async def test_manually_opened_session_is_refused():
    session = agent(pieces("one"))
    await session.initialize()
    with pytest.raises(SessionStateError, match="open it with `async with`"):
        await read(session.stream_text("hi"))
    assert await session.execute("hi") == "answer"
    await session.cleanup()


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────


async def test_broken_off_loop_stops_turn():
    """The next turn waits for its end."""
    log: list[str] = []
    async with agent(pieces("one", log=log)) as session:
        async for piece in session.stream_text("hi"):
            assert piece == "one"
            break
        assert log == []
        assert await session.execute("again") == "answer"
        assert log == ["unwound"]
        async for _ in session.stream_text("hi"):
            break
        async with session.stream("again") as events:
            async for _ in events:
                pass
        assert (events.result, log) == ("answer", ["unwound"] * 2)


async def test_turn_of_broken_off_loop_ends():
    log: list[str] = []
    async with agent(pieces("one", log=log)) as session:
        async for _ in session.stream_text("hi"):
            break
        gc.collect()
        await anyio.sleep(2)
        assert (session.statistics().turn_running, log) == (False, ["unwound"])


async def test_kept_stream_refuses_next_turn():
    log: list[str] = []
    async with agent(pieces("one", "two", log=log)) as session:
        text = session.stream_text("hi")
        assert await anext(text) == "one"
        for busy in (session.execute("again"), read(session.stream_text("again"))):
            with pytest.raises(SessionBusyError, match=r"not read to its end.*pieces\.aclose"):
                await busy
        assert await anext(text) == "two"
        await text.aclose()
        await text.aclose()
        assert log == ["unwound"]
        assert await read(text) == []
        assert await session.execute("again") == "answer"


async def test_block_exit_follows_unwinding():
    log: list[str] = []
    async with agent(pieces("one", log=log)) as session:
        async with session.stream_text("hi") as text:
            async for _ in text:
                break
        assert log == ["unwound"]
        async with session.stream_text("never begun"):
            pass
        assert await session.execute("again") == "answer"


@pytest.mark.parametrize(
    "reading", [True, False], ids=["while it waits for a piece", "in the body of the loop"]
)
async def test_cancelled_reader_stops_turn(reading):
    log: list[str] = []
    async with agent(pieces("one", log=log)) as session:
        with anyio.move_on_after(3) as scope:
            async for _ in session.stream_text("hi"):
                if not reading:
                    await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert log == (["unwound"] if reading else [])
        assert await session.execute("again") == "answer"
        assert log == ["unwound"]


async def test_shielded_emitter_is_not_kept_waiting_by_a_text_that_was_left():
    async def body(turn: Turn):
        piece = {"block_type": "text", "delta": "one"}
        with anyio.CancelScope(shield=True):
            for _ in range(MAX_BUFFERED + 2):
                await turn.hooks.emit("content_block:delta", piece)
        return "answer"

    async with agent(body) as session:
        with anyio.fail_after(5):
            async with session.stream_text("hi") as text:
                assert await anext(text) == "one"
                await anyio.wait_all_tasks_blocked()
        assert session.statistics().turn_running is False


# ── readers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["text", "events"])
async def test_second_reader_is_refused(kind):
    go = anyio.Event()

    async def body(turn: Turn):
        await go.wait()
        await turn.hooks.emit("content_block:delta", {"block_type": "text", "delta": "Hello"})
        return "Hello"

    got: list[Any] = []
    async with agent(body) as session:
        async with session.stream_text("hi") if kind == "text" else session.stream("hi") as stream:

            async def first():
                got.extend([part async for part in stream])

            async with anyio.create_task_group() as group:
                group.start_soon(first)
                await anyio.wait_all_tasks_blocked()
                if kind == "events":  # what came before the turn waited
                    got.clear()
                with pytest.raises(SessionStateError, match="a stream has one reader"):
                    await anext(stream)
                go.set()
        assert stream.result == "Hello"
    assert "Hello" in [part if kind == "text" else getattr(part, "text", "") for part in got]


@pytest.mark.parametrize("other", ["asyncio", "trio"])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_text_read_on_other_loop_is_refused(other, has_begun):
    async with agent(pieces("Hel", "lo", then="Hello")) as session:
        stream = session.stream_text("hi")
        if has_begun:
            assert await anext(stream) == "Hel"
        words = (
            "a stream is read on the event loop"
            if has_begun
            else "was opened on another event loop"
        )

        async def read_there():
            with pytest.raises(SessionStateError, match=words):
                await anext(stream)

        await anyio.to_thread.run_sync(lambda: anyio.run(read_there, backend=other))
        if has_begun:
            assert await read(stream) == ["lo"]
        assert await read(session.stream_text("again")) == ["Hel", "lo"]
