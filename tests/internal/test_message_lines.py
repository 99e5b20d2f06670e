"""Lines out of chunks: whole, in order, and of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._internal.message_lines import LineSplitter, LineTooLong


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_lines_match_whole_stream(chunks):
    lines = LineSplitter(1000)
    found = [line for chunk in chunks for line in lines.feed(chunk)]
    assert found == b"".join(chunks).split(b"\n")[:-1]


def test_overlong_line_is_refused_early():
    lines = LineSplitter(10)
    assert lines.feed(b"12345\n1234567") == [b"12345"]
    with pytest.raises(LineTooLong, match="more than 10 bytes"):
        lines.feed(b"8901")
