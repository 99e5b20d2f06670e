"""Strategies for what handlers are given: events known and unknown, payloads right and wrong.

Above stands `inputs`; below stand `_hook_payloads` and the strategies of wild values. Needs the ``testing`` extra.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ._hook_payloads import EVENTS, UNKNOWN_EVENTS, ordinary_payload
from ._inputs_tool import texts, wild_objects, wild_values
from ._odd_values import is_harmless

Facts = dict[str, Any]


def hook_events(facts: Facts) -> SearchStrategy[Any]:
    """A few events with payloads, one after the other."""
    words = [word for word in facts["words"] if is_harmless(word)]
    choices = [word for word in facts.get("choices", []) if is_harmless(word)]
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    likely = list(dict.fromkeys([*registered, *named])) or ["tool:pre", "tool:post"]
    events = st.sampled_from(likely) | st.sampled_from([*EVENTS, *UNKNOWN_EVENTS]) | texts()
    drawn = events.flatmap(lambda event: _happenings(event, words, choices))
    return st.lists(drawn, min_size=1, max_size=4)


def _happenings(event: str, words: list[str], choices: list[str]) -> SearchStrategy[Any]:
    usual = ordinary_payload(event)
    inner = [*usual["tool_input"]] if isinstance(usual.get("tool_input"), dict) else []
    wild = wild_objects([*usual, *words], choices)
    nested = wild_objects([*words, *inner], choices)
    bent = st.builds(lambda other: {**usual, **other}, wild)
    deeper = st.builds(
        lambda other, tool: {**usual, "tool_input": other, "tool_name": tool, "prompt": tool},
        nested,
        st.sampled_from(choices) | texts() if choices else texts(),
    )
    answered = st.builds(lambda other: {**usual, "result": other, "tool_result": other}, wild_values(choices))
    return st.fixed_dictionaries({"event": st.just(event), "data": st.one_of(wild, bent, deeper, answered)})


INPUTS = {"hook_events": hook_events}
