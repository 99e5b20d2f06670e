"""Texts that a pattern of a module's source matches, for handlers that look for them."""

from __future__ import annotations

import re

import pytest

from amplifier.conformance.engine.cases import texts_matching


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"rm\s+-rf", {"rm -rf"}),
        (r"\bsudo\b", {"sudo"}),
        (r"/etc/(passwd|shadow)", {"/etc/passwd", "/etc/shadow"}),
        (r"(['\"])x\1", {"'x'", '"x"'}),
        (r"-----BEGIN (?:RSA )?PRIVATE KEY-----", {"-----BEGIN RSA PRIVATE KEY-----"}),
        (r"^\d{3}-\d{2}-\d{4}$", set()),
        (r"[^\s]+@[\w-]+\.[a-z]{2,}", set()),
        (r"x{2,3}g.", set()),
    ],
)
def test_texts_are_found_for_a_pattern_and_all_match_it(pattern, texts):
    found = texts_matching(pattern)
    assert found == texts_matching(pattern)
    assert found
    assert texts <= set(found)
    assert all(re.search(pattern, text, re.IGNORECASE) for text in found)


@pytest.mark.parametrize("text", ["rm -rf", "(", "{0} %s ["])
def test_a_plain_text_and_an_invalid_pattern_are_taken_as_they_are(text):
    assert texts_matching(text) == [text]
