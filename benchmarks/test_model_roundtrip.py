"""Models to JSON and back: against the same models in pydantic 2, and against the published kernel's in the same process."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from amplifier.models import ChatRequest, HookResult, from_dict, from_json, to_dict, to_json
from benchmarks import pydantic_models
from benchmarks.duel import fight, timed_call
from benchmarks.payloads import chat_request, exchanged_texts

DATA = chat_request(messages=200)
TEXTS = {
    "messages": [
        {"role": ("user", "assistant")[at % 2], "content": text}
        for at, text in enumerate(exchanged_texts(200))
    ],
    "stream": False,
}
OF_EACH_KIND = pytest.mark.parametrize(
    ("kind", "data"),
    [("text messages", TEXTS), ("messages with blocks", DATA)],
    ids=["texts", "blocks"],
)


def compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


@OF_EACH_KIND
def test_reading_against_pydantic(board, kind, data):
    text = compact(data)
    theirs, ours = pydantic_models.Request.model_validate_json(text), from_json(ChatRequest, text)
    # Both sides keep everything, or the comparison is about nothing.
    assert json.loads(theirs.model_dump_json(exclude_none=True)) == to_dict(ours) == data
    sides = (
        timed_call(lambda: pydantic_models.Request.model_validate_json(text)),
        timed_call(lambda: from_json(ChatRequest, text)),
    )
    board.duel(f"read 200 {kind}", *sides, rival="pydantic 2")


@OF_EACH_KIND
def test_writing_against_pydantic(board, kind, data):
    text = compact(data)
    theirs, ours = pydantic_models.Request.model_validate_json(text), from_json(ChatRequest, text)
    assert to_json(from_json(ChatRequest, to_json(ours))) == to_json(ours) == text
    sides = timed_call(theirs.model_dump_json), timed_call(lambda: to_json(ours))
    board.duel(f"write 200 {kind}", *sides, rival="pydantic 2")


@pytest.fixture(scope="module")
def requests() -> tuple[Any, ChatRequest]:
    published = pytest.importorskip("amplifier_core.message_models", reason="the published kernel")
    return published.ChatRequest.model_validate_json(compact(DATA)), from_json(
        ChatRequest, compact(DATA)
    )


@pytest.mark.orientation
def test_a_request_of_200_messages_against_the_published_kernel(board, requests):
    theirs, ours = requests
    text = compact(DATA)
    board.duel(
        "encode a ChatRequest of 200 messages",
        timed_call(theirs.model_dump_json),
        timed_call(lambda: to_json(ours)),
    )
    sides = (
        timed_call(lambda: type(theirs).model_validate_json(text)),
        timed_call(lambda: from_json(ChatRequest, text)),
    )
    board.duel("decode a ChatRequest of 200 messages", *sides)


@pytest.mark.orientation
def test_plain_data_and_construction(board, requests):
    theirs, ours = requests
    published, result = type(theirs), pytest.importorskip("amplifier_core.models").HookResult
    for work, their_call, our_call in [
        ("ChatRequest to dicts", lambda: theirs.model_dump(mode="json"), lambda: to_dict(ours)),
        (
            "ChatRequest from dicts",
            lambda: published.model_validate(DATA),
            lambda: from_dict(ChatRequest, DATA),
        ),
        ("ChatRequest from keywords", lambda: published(**DATA), lambda: ChatRequest(**DATA)),
        ("HookResult()", result, HookResult),
    ]:
        board.duel(work, timed_call(their_call), timed_call(our_call))


@pytest.mark.orientation
def test_orjson_is_still_the_codec_to_choose():
    msgspec = pytest.importorskip("msgspec", reason="the codec we did not choose")
    text = orjson.dumps(DATA)
    writing = fight(
        timed_call(lambda: msgspec.json.encode(DATA)), timed_call(lambda: orjson.dumps(DATA))
    )
    reading = fight(
        timed_call(lambda: msgspec.json.decode(text)), timed_call(lambda: orjson.loads(text))
    )
    writes, reads = (sorted(bout.ratios)[len(bout.ratios) // 2] for bout in (writing, reading))
    assert writes > 1.3
    assert writes * reads > 1
