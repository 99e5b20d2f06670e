"""An answer whose stream was cut and came again is announced, and shown from its beginning."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession
from amplifier.errors import ProviderUnavailableError
from amplifier.models import AnswerReset, ChatResponse, StreamChunk, TextBlock, ThinkingBlock
from amplifier.models.turns import BEGINS_AGAIN, TurnRecord, TurnText
from amplifier.shared_sessions import run_turn
from amplifier.testing import MockProvider

pytestmark = pytest.mark.virtual_time

Attempt = list[StreamChunk]


def divided(
    text: str, borders: list[int], pieces: int, *, whole: bool = False, thought: str = ""
) -> Attempt:
    """An answer in blocks that end at these places, each in pieces of that many characters."""
    blocks: list[Any] = [ThinkingBlock(thinking=thought)] if thought else []
    places = sorted({min(border, len(text)) for border in borders} | {0, len(text)})
    blocks += [TextBlock(text=text[a:b]) for a, b in itertools.pairwise(places)]
    chunks: Attempt = []
    for index, block in enumerate(blocks):
        words = block.text if isinstance(block, TextBlock) else block.thinking
        chunks.append(StreamChunk(kind="block_start", index=index, block_type=block.type))
        if not whole:
            for at in range(0, len(words), pieces):
                piece = words[at : at + pieces]
                chunks.append(
                    StreamChunk(kind="block_delta", index=index, block_type=block.type, text=piece)
                )
        chunks.append(StreamChunk(kind="block_end", index=index, block=block))
    chunks.append(StreamChunk(kind="response", response=ChatResponse(content=blocks)))
    return chunks


class Cut:
    """Streams attempts; one without a response is cut at its end."""

    name = "cut"

    def __init__(self, attempts: list[Attempt]) -> None:
        self.attempts = list(attempts)
        mock = MockProvider([])
        self.get_info, self.list_models = mock.get_info, mock.list_models
        self.complete, self.parse_tool_calls = mock.complete, mock.parse_tool_calls

    @asynccontextmanager
    async def stream(
        self, request: Any, **kwargs: Any
    ) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        chunks = self.attempts.pop(0)

        async def pieces() -> AsyncIterator[StreamChunk]:
            for chunk in chunks:
                yield chunk
            if not chunks or chunks[-1].kind != "response":
                raise ProviderUnavailableError("the connection was lost")

        yield pieces()


def session_of(attempts: list[Attempt]) -> AmplifierSession:
    loop = {"module": "loop-streaming", "config": {"initial_delay": 0, "max_retries": 9}}
    plan = {
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": [Cut(attempts)],
    }
    return AmplifierSession(plan)


async def shown(attempts: list[Attempt]) -> list[str]:
    """What those see who can take nothing back: the text, the events and what a client of the fold gets."""
    async with session_of(attempts) as session:
        joined = "".join([piece async for piece in session.stream_text("hi")])
    text, folded = TurnText(), ""
    async with session_of(attempts) as session, session.stream("hi") as events:
        async for event in events:
            assert not isinstance(event, AnswerReset) or event.text == text.unfinished
            folded += text.add(event)
    folded += text.rest(events.result)
    record, lived = TurnRecord(), ""

    async def show(event: Any, new: str) -> None:
        nonlocal lived
        lived += new

    async with session_of(attempts) as session:
        ended = await run_turn(session, "hi", record, show)
        lived += record.rest(ended.result)
    return [joined, folded, lived]


texts = st.text(alphabet="ab \n", min_size=1, max_size=12)
borders = st.lists(st.integers(1, 11), max_size=3)
division = st.tuples(borders, st.integers(1, 5), st.booleans())


def text_of(chunks: Attempt) -> str:
    """What listeners get of an attempt: pieces, and the blocks that came without any."""
    text, in_pieces = "", set()
    for chunk in chunks:
        if chunk.kind == "block_delta" and chunk.block_type == "text":
            in_pieces.add(chunk.index)
            text += chunk.text or ""
        elif isinstance(chunk.block, TextBlock) and chunk.index not in in_pieces:
            text += chunk.block.text
    return text


@settings(max_examples=50)
@given(
    drawn=st.lists(st.tuples(texts, division), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    thought=st.sampled_from(["", "hmm"]),
)
async def test_repeated_answer_follows_announcement(drawn, cuts, thought):
    attempts = [
        divided(text, places, size, whole=whole, thought=thought)
        for text, (places, size, whole) in drawn
    ]
    attempts[:-1] = [chunks[:-1][:cut] for chunks, cut in zip(attempts, cuts, strict=False)]
    # An attempt without text leaves nothing to take back from those who read text.
    expected = BEGINS_AGAIN.join([*filter(None, map(text_of, attempts[:-1])), drawn[-1][0]])
    assert await shown(attempts) == [expected] * 3
