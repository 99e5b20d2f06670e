"""Models to JSON and back, against the published kernel's pydantic models in the same process."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from amplifier_core.message_models import ChatRequest as ReferenceRequest
from amplifier_core.models import HookResult as ReferenceResult

from amplifier.models import ChatRequest, HookResult, from_dict, from_json, to_dict, to_json
from benchmarks.duel import fight, timed_call
from benchmarks.payloads import chat_request

DATA = chat_request(messages=200)
TEXT = json.dumps(DATA, ensure_ascii=False, separators=(",", ":"))


@pytest.fixture(scope="module")
def requests() -> tuple[Any, ChatRequest]:
    theirs, ours = ReferenceRequest.model_validate_json(TEXT), from_json(ChatRequest, TEXT)
    # Both sides keep everything, or the comparison is about nothing.
    assert json.loads(theirs.model_dump_json(exclude_none=True)) == json.loads(to_json(ours)) == DATA
    assert to_json(from_json(ChatRequest, to_json(ours))) == to_json(ours)
    return theirs, ours


def test_writing_a_request_of_200_messages(board, requests):
    theirs, ours = requests
    sides = timed_call(theirs.model_dump_json), timed_call(lambda: to_json(ours))
    board.duel("encode a ChatRequest of 200 messages", *sides, target=2.5).check()


def test_reading_a_request_of_200_messages(board, requests):
    sides = (
        timed_call(lambda: ReferenceRequest.model_validate_json(TEXT)),
        timed_call(lambda: from_json(ChatRequest, TEXT)),
    )
    board.duel("decode a ChatRequest of 200 messages", *sides, target=1.3).check()


@pytest.mark.orientation
def test_plain_data_and_construction(board, requests):
    theirs, ours = requests
    for work, their_call, our_call in [
        ("ChatRequest to dicts", lambda: theirs.model_dump(mode="json"), lambda: to_dict(ours)),
        ("ChatRequest from dicts", lambda: ReferenceRequest.model_validate(DATA), lambda: from_dict(ChatRequest, DATA)),
        ("ChatRequest from keywords", lambda: ReferenceRequest(**DATA), lambda: ChatRequest(**DATA)),
        ("HookResult()", ReferenceResult, HookResult),
    ]:
        row = board.duel(work, timed_call(their_call), timed_call(our_call))
        assert row.value > 0.5, row.line()


@pytest.mark.orientation
def test_orjson_is_still_the_codec_to_choose():
    msgspec = pytest.importorskip("msgspec", reason="the codec we did not choose")
    text = orjson.dumps(DATA)
    writing = fight(timed_call(lambda: msgspec.json.encode(DATA)), timed_call(lambda: orjson.dumps(DATA)))
    reading = fight(timed_call(lambda: msgspec.json.decode(text)), timed_call(lambda: orjson.loads(text)))
    writes, reads = (sorted(bout.ratios)[len(bout.ratios) // 2] for bout in (writing, reading))
    assert writes > 1.3
    assert writes * reads > 1
