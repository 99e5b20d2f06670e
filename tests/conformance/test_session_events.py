"""The events of a session in which tools fail: order, forms of failure, and how often they come in a row."""

from __future__ import annotations

from itertools import groupby

import pytest

from amplifier.conformance.inputs.hook_payloads import NEUTRAL
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.conformance.inputs.session_events import MOST_IN_A_ROW, session_events
from amplifier.events import CATALOGUE

EVENTS = list(session_events("look", {"path": "canary.txt"}))


def test_the_session_begins_and_ends_once_and_every_event_is_in_the_catalogue():
    names = [event for event, _ in EVENTS]
    assert (names[0], names[-1]) == ("session:start", "session:end")
    assert set(names) <= set(CATALOGUE)
    assert names.count("session:start") == names.count("session:end") == 1


def test_every_call_has_one_result_or_one_error_after_it():
    calls = [(event, data["tool_call_id"]) for event, data in EVENTS if event.startswith("tool:")]
    begun, ended = calls[::2], calls[1::2]
    assert {event for event, _ in begun} == {"tool:pre"}
    assert [call for _, call in begun] == [call for _, call in ended]
    assert len({call for _, call in begun}) == len(begun)


@pytest.mark.parametrize("error", [None, {"type": "TimeoutError", "message": "timeout: it failed after 30 s"}])
def test_a_call_fails_in_the_same_way_many_times_in_a_row(error):
    results = [data["result"] for event, data in EVENTS if event == "tool:post"]
    rows = {text: len(list(row)) for text, row in groupby(fingerprint(result) for result in results)}
    assert rows[fingerprint({"success": False, "output": None, "error": error})] == MOST_IN_A_ROW


def test_payloads_are_json_have_neutral_keys_and_share_nothing():
    assert all(json_problem(data) is None and set(NEUTRAL) <= set(data) for _, data in EVENTS)
    inputs = [data["tool_input"] for event, data in EVENTS if event == "tool:pre"]
    assert len({id(each) for each in inputs}) == len(inputs)
