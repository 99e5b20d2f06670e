"""Texts that an expression matches, found by reading the expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.inputs.regex_matches import texts_matching


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"rm\s+-rf", "rm -rf"),
        (r"\bsudo\b", "sudo"),
        (r"/etc/(passwd|shadow)", "/etc/shadow"),
        (r"^\d{3}-\d{2}-\d{4}$", "777-77-7777"),
        (r"(['\"])x\1", '"x"'),
        (r"-----BEGIN (?:RSA )?PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"),
        (r"[^\s]+@[\w-]+\.[a-z]{2,}", "a@a.aa"),
        ("rm -rf", "rm -rf"),
    ],
)
def test_a_text_is_found_for_an_expression(pattern, text):
    assert text in texts_matching(pattern)


def test_an_invalid_expression_is_returned_as_it_is():
    assert texts_matching("(") == ["("]
    assert texts_matching("{0} %s [") == ["{0} %s ["]


_PIECES = st.sampled_from(
    ["a", r"\d", r"\w+", r"\s*", "[a-c]", "[^x]", "(b|cd)", "(?:ef)?", ".", "x{2,3}", r"\.", "(?=g)g"]
)


@given(st.lists(_PIECES, min_size=1, max_size=6).map("".join))
def test_every_text_that_is_found_matches(pattern):
    found = texts_matching(pattern)
    assert all(re.search(pattern, text, re.IGNORECASE) for text in found if text != pattern)
    assert found
