"""Server-sent events: any split of the bytes gives the same events, and no bytes raise unexpected errors."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.modules.providers._wire_format import (
    ContentBlocks,
    SseEvent,
    SseParser,
    join_surrogates,
    read_json,
)


def parse(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


CASES = [
    (b"data: a\n\n", [SseEvent(None, "a")]),
    (b"data:a\n\n", [SseEvent(None, "a")]),
    (b"data:  a\n\n", [SseEvent(None, " a")]),
    (b"event: x\ndata: a\ndata: b\n\n", [SseEvent("x", "a\nb")]),
    (b"event: x\n\ndata: a\n\n", [SseEvent(None, "a")]),
    (b": comment\nid: 3\nretry: 9\ndata: a\n\n", [SseEvent(None, "a")]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [SseEvent(None, "a"), SseEvent(None, "b")]),
    (b"event: x\r\ndata: a\r\ndata: b\r\n\r\n", [SseEvent("x", "a\nb")]),
    (b"data: a\r\rdata: b\r\r", [SseEvent(None, "a"), SseEvent(None, "b")]),
    (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(None, "a")]),
    (b"data: a", [SseEvent(None, "a")]),
    (b"data: a\n", [SseEvent(None, "a")]),
    (b"data\n\n", [SseEvent(None, "")]),
    ("data: grüße\u2028x\n\n".encode(), [SseEvent(None, "grüße\u2028x")]),
    (b"\n\n\n", []),
    (b"", []),
]


@pytest.mark.parametrize(("data", "events"), CASES)
def test_events_follow_standard(data, events):
    assert parse(data) == events
    assert parse(*(bytes([byte]) for byte in data)) == events


LINES = st.lists(
    st.sampled_from(
        [
            b"data: x",
            b"data: {}",
            b"event: e",
            b": c",
            b"",
            b"",
            b"data",
            "data: ü😀".encode(),
            b"junk",
        ]
    ),
    max_size=12,
)


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 200), max_size=8))
def test_byte_splits_give_same_events(lines, end, cuts):
    data = b"".join(line + end for line in lines)
    assert parse(*split(data, cuts)) == parse(data)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_arbitrary_bytes_raise_only_value_error(pieces):
    try:
        events = parse(*pieces)
    except ValueError:
        return
    assert all(isinstance(event.data, str) for event in events)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "{", "[" * 100_000, ""])
def test_invalid_json_is_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 — json's own errors have no common words
        read_json(text)


@given(st.text(), st.lists(st.integers(0, 50), max_size=5))
def test_text_in_utf16_pieces_is_joined(text, cuts):
    """Services that count in UTF-16 cut characters in half; both halves arrive, and neither is ever shown alone."""
    units = text.encode("utf-16-le", "surrogatepass")
    pieces = [piece.decode("utf-16-le", "surrogatepass") for piece in split_units(units, cuts)]
    blocks = ContentBlocks()
    blocks.start("b", "text")
    shown = [chunk.text for piece in pieces for chunk in blocks.add("b", piece)]
    assert "".join(filter(None, shown)) == blocks.text("b") == join_surrogates(text)


def split_units(units: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({2 * (cut % (len(units) // 2 + 1)) for cut in cuts} | {0, len(units)})
    return [units[a:b] for a, b in itertools.pairwise(places)]


def test_half_character_at_end_is_marked():
    blocks = ContentBlocks()
    blocks.start("b", "text")
    assert blocks.add("b", "a\ud83d")[0].text == "a"
    assert blocks.text("b") == "a\ufffd"
