"""Strategies for what handlers get: events known and unknown, payloads right and wrong. Needs the ``testing`` extra."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.inputs.hook_payloads import EVENTS, UNKNOWN_EVENTS, ordinary_payload
from amplifier.conformance.inputs.hostile_values import is_harmless

from .tool import texts, wild_objects, wild_values

Facts = dict[str, Any]


def hook_events(facts: Facts) -> SearchStrategy[Any]:
    """A few events with payloads, one after the other."""
    words = [word for word in facts["words"] if is_harmless(word)]
    choices = [word for word in facts.get("choices", []) if is_harmless(word)]
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    likely = list(dict.fromkeys([*registered, *named])) or ["tool:pre", "tool:post"]
    events = st.sampled_from(likely) | st.sampled_from([*EVENTS, *UNKNOWN_EVENTS]) | texts()
    keys = list(dict.fromkeys([*words, *(key for event in likely[:6] for key in ordinary_payload(event))]))
    wild = wild_objects(keys, choices)
    inner = wild_objects([*words, "path", "command", "text"], choices)
    name = st.sampled_from(choices) | texts() if choices else texts()
    # Put together afterwards, and not drawn one from the other, which takes ten times as long.
    happening = st.builds(_happening, events, st.sampled_from(_WAYS), wild, inner, name, wild_values(choices))
    return st.lists(happening, min_size=1, max_size=4)


_WAYS = ("wild", "bent", "tool", "answer")


def _happening(
    event: str, way: str, wild: dict[str, Any], inner: dict[str, Any], name: str, answer: Any
) -> dict[str, Any]:
    usual = ordinary_payload(event)
    data = {
        "wild": wild,
        "bent": {**usual, **wild},
        "tool": {**usual, "tool_input": inner, "tool_name": name, "prompt": name},
        "answer": {**usual, "tool_name": name, "result": answer, "tool_result": answer},
    }[way]
    return {"event": event, "data": data}
