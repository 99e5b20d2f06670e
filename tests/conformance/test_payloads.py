"""Payloads for hooks: of every event, wrong in one way, drawn, and of a session that fails."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given

from amplifier.conformance.engine.cases import hook_events, listed_events
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.conformance.inputs.payloads import (
    EVENTS,
    MAX_REPEATED_FAILURES,
    NEUTRAL,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
    session_events,
)
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
        assert any(
            key not in each and fingerprint({**others}) == fingerprint(each) for each in found
        )
        assert any(
            each.get(key, "") is None
            and fingerprint({**each, key: usual[key]}) == fingerprint(usual)
            for each in found
        )
    assert any("word" in each for each in found)
    assert len(list(odd_payloads("tool:pre", ["word"], briefly=True))) < 6


def test_words_of_the_source_reach_the_tool_and_its_input():
    found = list(reaching_payloads("tool:pre", ["target"], ["deploy", "rm -rf /"]))
    assert any(each["tool_name"] == "deploy" for each in found)
    assert any(each["tool_input"].get("target") == "deploy" for each in found)
    assert not [each for each in found if "rm -rf" in fingerprint(each)]


FACTS: dict[str, Any] = {
    "words": ["target"],
    "choices": ["deploy"],
    "handlers": [["h", "tool:pre"]],
    "texts": [],
    "triggers": [],
}


@given(hook_events(FACTS))
def test_a_drawn_case_is_json_with_an_event_and_its_data(case):
    assert json_problem(case) is None
    assert case["events"]
    assert all(
        isinstance(each["event"], str) and isinstance(each["data"], dict) for each in case["events"]
    )


def test_listed_cases_are_json_and_end_with_sessions():
    cases = list(listed_events({**FACTS, "triggers": ["rm -rf"]}))
    assert all(json_problem(case) is None and case["events"] for case in cases)
    assert [case.get("routed", False) for case in cases] == [False, False, True, True]


SESSION = list(session_events("look", {"path": "canary.txt"}))


def test_the_session_begins_and_ends_once_and_every_event_is_in_the_catalogue():
    names = [event for event, _ in SESSION]
    assert (names[0], names[-1]) == ("session:start", "session:end")
    assert set(names) <= set(CATALOGUE)
    assert names.count("session:start") == names.count("session:end") == 1


def test_every_call_has_one_result_or_one_error_after_it():
    calls = [(event, data["tool_call_id"]) for event, data in SESSION if event.startswith("tool:")]
    begun, ended = calls[::2], calls[1::2]
    assert {event for event, _ in begun} == {"tool:pre"}
    assert [call for _, call in begun] == [call for _, call in ended]
    assert len({call for _, call in begun}) == len(begun)


@pytest.mark.parametrize(
    "error", [None, {"type": "TimeoutError", "message": "timeout: it failed after 30 s"}]
)
def test_a_call_fails_in_the_same_way_many_times_in_a_row(error):
    results = [data["result"] for event, data in SESSION if event == "tool:post"]
    rows = {
        text: len(list(row)) for text, row in groupby(fingerprint(result) for result in results)
    }
    assert (
        rows[fingerprint({"success": False, "output": None, "error": error})]
        == MAX_REPEATED_FAILURES
    )


def test_payloads_are_json_have_neutral_keys_and_share_nothing():
    assert all(json_problem(data) is None and set(NEUTRAL) <= set(data) for _, data in SESSION)
    inputs = [data["tool_input"] for event, data in SESSION if event == "tool:pre"]
    assert len({id(each) for each in inputs}) == len(inputs)
