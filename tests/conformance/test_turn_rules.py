"""The judges of scripted turns: each says what the contract says about a turn, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.conformance.harness.calls import Outcome
from amplifier.conformance.harness.scripted_turns import (
    RecordedTurn,
    hook_violations,
    stop_violations,
    turn_violations,
)
from amplifier.conformance.harness.scripted_turns.record import LogEntry
from amplifier.conformance.harness.scripted_turns.script import read_turns

TWO_TOOLS = [{"blocks": [{"think": "hm "}, {"call": "alpha"}, {"call": "beta"}]}, {"blocks": [{"say": "Done. "}]}]


class Told:
    """A turn as a sound loop would leave it, to be changed by a test."""

    def __init__(self, answers: list[Any] | None = None) -> None:
        script = read_turns({"turns": [{"prompt": "Go.", "answers": answers or TWO_TOOLS}]})[0]
        self.turn = RecordedTurn(script=script)
        self.turn.outcome = Outcome(kind="returned", value="".join(script.answers[-1].texts))
        self.stored: list[dict[str, Any]] = []
        self.event("execution:start")
        self.store({"role": "user", "content": "Go."})
        for answer in script.answers:
            self.answer(answer)
        self.event("execution:end", status="completed")
        self.event("orchestrator:complete")

    def event(self, name: str, **data: Any) -> None:
        self.turn.log.append(LogEntry("event", name, data))

    def store(self, message: dict[str, Any]) -> None:
        self.stored.append(message)
        self.turn.log.append(LogEntry("stored", message["role"], message))

    def answer(self, answer: Any) -> None:
        view = [{"role": "user", "content": "view1x"}, *self.stored]
        self.event("provider:request")
        self.turn.log.append(LogEntry("view", "view1x", view))
        self.turn.log.append(LogEntry("asked", "one", {"messages": view}))
        self.turn.log.append(LogEntry("answered", "one", answer))
        self.event("provider:response")
        calls = [{"id": call.id, "name": call.tool, "arguments": call.arguments} for call in answer.calls]
        texts = [{"type": "text", "text": text} for text in answer.texts]
        self.store({"role": "assistant", "content": [*answer.structured(), *texts], "tool_calls": calls})
        for call in answer.calls:
            about = {"tool_name": call.tool, "tool_call_id": call.id}
            self.event("tool:pre", **about)
            self.turn.log.append(LogEntry("started", call.tool, {"input": call.arguments, "call": call}))
            self.turn.log.append(LogEntry("returned", call.tool, {"call": call}))
            self.event("tool:post", **about, tool_result=call.mark)
        for call in answer.calls:
            self.store({"role": "tool", "tool_call_id": call.id, "content": call.mark})

    def positions(self, kind: str, name: str | None = None) -> list[int]:
        return self.turn.positions(kind, name)

    def without(self, *positions: int) -> Told:
        self.turn.log[:] = [each for index, each in enumerate(self.turn.log) if index not in positions]
        return self

    def swapped(self, one: int, other: int) -> Told:
        log = self.turn.log
        log[one], log[other] = log[other], log[one]
        return self

    def clauses(self) -> set[str]:
        return {clause for clause, _ in turn_violations(self.turn)}


def test_a_sound_turn_is_not_complained_about():
    assert Told().clauses() == set()


@pytest.mark.parametrize(
    ("kind", "name", "which", "clause"),
    [
        ("event", "execution:start", 0, "O4"),
        ("event", "execution:end", 0, "O5"),
        ("event", "orchestrator:complete", 0, "O6"),
        ("event", "provider:request", 1, "O7"),
        ("event", "provider:response", 0, "O7"),
        ("event", "tool:pre", 1, "O8"),
        ("event", "tool:post", 0, "O8"),
        ("stored", "user", 0, "O9"),
        ("view", None, 1, "O10"),
        ("stored", "assistant", 0, "O11"),
        ("stored", "tool", 1, "O13"),
        ("stored", "assistant", 1, "O24"),
    ],
)
def test_what_is_left_out_is_missed(kind, name, which, clause):
    told = Told()
    assert clause in told.without(told.positions(kind, name)[which]).clauses()


def test_results_out_of_order_are_seen_though_ids_would_sort_otherwise():
    told = Told()
    first, second = told.positions("stored", "tool")
    assert "O12" in told.swapped(first, second).clauses()


def test_results_under_each_others_ids_are_seen():
    told = Told()
    one, other = (told.turn.log[position].data for position in told.positions("stored", "tool"))
    one["content"], other["content"] = other["content"], one["content"]
    assert told.clauses() == {"O12"}


def test_a_lost_signature_is_seen():
    told = Told()
    message = told.turn.log[told.positions("stored", "assistant")[0]].data
    message["content"][0].pop("signature")
    assert told.clauses() == {"O24"}


def test_what_stands_between_a_call_and_its_result_is_no_matter():
    told = Told()
    injected = LogEntry("stored", "system", {"role": "system", "content": "mind this"})
    told.turn.log.insert(told.positions("stored", "tool")[1], injected)
    assert told.clauses() == set()


def test_joined_messages_of_one_role_still_show_the_view():
    told = Told()
    request = told.turn.log[told.positions("asked")[0]].data["messages"]
    request[:] = [{"role": "user", "content": "view1x\nGo."}]
    assert told.clauses() == set()


def test_a_cancelled_turn_owes_results_only_for_answers_that_were_stored():
    told = Told()
    told.turn.is_cancelled = True
    told.turn.outcome = None
    told.turn.log[told.positions("event", "execution:end")[0]].data["status"] = "cancelled"
    first = told.positions("stored", "assistant")[0]
    results = told.positions("stored", "tool")
    assert "O13" in Told.without(told, *results).clauses()
    assert told.without(first).clauses() & {"O11", "O12", "O13"} == set()


def test_nobody_can_know_whether_an_answer_is_stored_whose_storing_was_cancelled():
    told = Told()
    told.turn.is_cancelled = True
    position = told.positions("stored", "assistant")[0]
    told.turn.log[position] = LogEntry("storing", "assistant", told.turn.log[position].data)
    assert "O11" not in told.clauses()


def test_a_denied_tool_that_runs_and_a_reason_that_is_not_told_are_seen():
    told = Told()
    call = told.turn.script.calls[0]
    said = {"action": "deny", "what": "deny", "word": "because-x", "number": call.number}
    told.turn.log.insert(told.positions("started", "alpha")[0], LogEntry("verdict", "tool:pre", said))
    assert {clause for clause, _ in hook_violations(told.turn)} == {"O15"}
    told.without(*told.positions("started", "alpha"), *told.positions("returned", "alpha"))
    assert {clause for clause, _ in hook_violations(told.turn)} == {"O15"}
    told.turn.log[told.positions("stored", "tool")[0]].data["content"] = "Denied: because-x"
    assert list(hook_violations(told.turn)) == []


def test_after_a_stop_nothing_is_started_and_nothing_is_interrupted():
    told = Told()
    told.turn.log.insert(told.positions("started", "beta")[0], LogEntry("stop", "graceful"))
    words = [what for clause, what in stop_violations(told.turn) if clause == "O22"]
    assert len(words) == 2  # a tool was started, and the model was asked
