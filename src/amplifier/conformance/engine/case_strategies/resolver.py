"""Strategies for resolvers: questions to be asked one after another. Needs the ``testing`` extra."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.harness.resolver_sources import SAMPLES, UNHEARD_OF, ids_in

_HINTS = (None, "a path", "another place", "a file URI", "a missing path", "a missing URI", "an empty text")


def questions(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Some questions, the same ones again and again among them."""
    ids = st.sampled_from([*SAMPLES, *ids_in(facts["texts"]), *UNHEARD_OF])
    one = st.tuples(ids, st.sampled_from(_HINTS)).map(list)
    some = st.lists(one, min_size=2, max_size=5)
    return some.map(lambda asked: {"questions": [*asked, *reversed(asked)]})
