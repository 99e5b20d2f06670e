"""Payloads for handlers: ordinary ones of every event, and payloads with one thing wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from amplifier.conformance.engine.case_strategies.hook import hook_events
from amplifier.conformance.inputs.hook_payloads import (
    EVENTS,
    NEUTRAL,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
)
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.events import ALL_EVENTS, CATALOGUE


def test_every_event_of_the_catalogue_is_tried_and_some_unknown_ones():
    assert set(EVENTS) >= set(ALL_EVENTS)
    assert not set(UNKNOWN_EVENTS) & set(CATALOGUE)


@pytest.mark.parametrize("event", EVENTS)
def test_an_ordinary_payload_has_the_keys_of_its_event_as_json(event):
    payload = ordinary_payload(event)
    assert set(CATALOGUE[event].keys) <= set(payload)
    assert set(NEUTRAL) <= set(payload)
    assert json_problem(payload) is None


def test_payloads_share_nothing_with_each_other():
    first, second = ordinary_payload("tool:post"), ordinary_payload("tool:post")
    first["tool_input"]["path"] = "changed"
    first["kit_numbers"].append(3)
    assert second["tool_input"]["path"] != "changed"
    assert second["kit_numbers"] == [1, 2]


def test_every_key_is_once_missing_and_once_of_another_type():
    usual = ordinary_payload("tool:pre")
    found = list(odd_payloads("tool:pre", ["word"]))
    for key in CATALOGUE["tool:pre"].keys:
        others = {name: value for name, value in usual.items() if name != key}
        assert any(key not in each and fingerprint({**others}) == fingerprint(each) for each in found)
        assert any(
            each.get(key, "") is None and fingerprint({**each, key: usual[key]}) == fingerprint(usual) for each in found
        )
    assert any("word" in each for each in found)
    assert len(list(odd_payloads("tool:pre", ["word"], briefly=True))) < 6


def test_words_of_the_source_reach_the_tool_and_its_input():
    found = list(reaching_payloads("tool:pre", ["target"], ["deploy", "rm -rf /"]))
    assert any(each["tool_name"] == "deploy" for each in found)
    assert any(each["tool_input"].get("target") == "deploy" for each in found)
    assert not [each for each in found if "rm -rf" in fingerprint(each)]


FACTS: dict[str, Any] = {"words": ["target"], "choices": ["deploy"], "handlers": [["h", "tool:pre"]], "texts": []}


@given(hook_events(FACTS))
def test_a_drawn_case_is_json_with_an_event_and_its_data(case):
    assert json_problem(case) is None
    assert case
    assert all(isinstance(each["event"], str) and isinstance(each["data"], dict) for each in case)
