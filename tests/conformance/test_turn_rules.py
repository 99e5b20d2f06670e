"""The rules about scripted turns, applied to turns whose log is made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.conformance.oracles.turn_rules import (
    hook_violations,
    stop_violations,
    turn_violations,
)
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.turn_script import LogEntry, RecordedTurn, read_turns

TWO_TOOLS = [
    {"blocks": [{"think": "hm "}, {"call": "alpha"}, {"call": "beta"}]},
    {"blocks": [{"say": "Done. "}]},
]


class TurnBuilder:
    """The log of a correct turn, to be changed by a test."""

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
        calls = [
            {"id": call.id, "name": call.tool, "arguments": call.arguments} for call in answer.calls
        ]
        texts = [{"type": "text", "text": text} for text in answer.texts]
        self.store(
            {"role": "assistant", "content": [*answer.structured(), *texts], "tool_calls": calls}
        )
        for call in answer.calls:
            about = {"tool_name": call.tool, "tool_call_id": call.id}
            self.event("tool:pre", **about)
            self.turn.log.append(
                LogEntry("started", call.tool, {"input": call.arguments, "call": call})
            )
            self.turn.log.append(LogEntry("returned", call.tool, {"call": call}))
            self.event("tool:post", **about, tool_result=call.mark)
        for call in answer.calls:
            self.store({"role": "tool", "tool_call_id": call.id, "content": call.mark})

    def positions(self, kind: str, name: str | None = None) -> list[int]:
        return self.turn.positions(kind, name)

    def without(self, *positions: int) -> TurnBuilder:
        self.turn.log[:] = [
            each for index, each in enumerate(self.turn.log) if index not in positions
        ]
        return self

    def swapped(self, one: int, other: int) -> TurnBuilder:
        log = self.turn.log
        log[one], log[other] = log[other], log[one]
        return self

    def clauses(self) -> set[str]:
        return {clause for clause, _ in turn_violations(self.turn)}


def test_a_correct_turn_breaks_no_clause():
    assert TurnBuilder().clauses() == set()


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
def test_a_missing_entry_breaks_its_clause(kind, name, which, clause):
    built = TurnBuilder()
    assert clause in built.without(built.positions(kind, name)[which]).clauses()


def test_results_out_of_order_break_o12_whatever_the_order_of_their_ids():
    built = TurnBuilder()
    first, second = built.positions("stored", "tool")
    assert "O12" in built.swapped(first, second).clauses()


def test_results_under_swapped_ids_break_o12():
    built = TurnBuilder()
    one, other = (built.turn.log[position].data for position in built.positions("stored", "tool"))
    one["content"], other["content"] = other["content"], one["content"]
    assert built.clauses() == {"O12"}


def test_a_lost_signature_breaks_o24():
    built = TurnBuilder()
    message = built.turn.log[built.positions("stored", "assistant")[0]].data
    message["content"][0].pop("signature")
    assert built.clauses() == {"O24"}


ODD = [
    {"blocks": [{"odd": "hm "}, {"think": "so "}, {"call": "alpha"}]},
    {"blocks": [{"say": "Done. "}]},
]


def test_a_lost_block_of_an_unknown_type_breaks_only_the_recommendation():
    built = TurnBuilder(ODD)
    message = built.turn.log[built.positions("stored", "assistant")[0]].data
    unknown, thought, *rest = message["content"]
    message["content"] = [thought, *rest]
    assert built.clauses() == {"O30"}
    message["content"] = [unknown, *rest]
    assert built.clauses() == {"O24"}


def test_an_answer_of_unknown_blocks_alone_that_is_not_stored_breaks_only_the_recommendation():
    built = TurnBuilder([{"blocks": [{"call": "alpha"}]}, {"blocks": [{"odd": "hm "}]}])
    assert built.without(built.positions("stored", "assistant")[1]).clauses() == {"O30"}


def test_an_answer_may_be_stored_in_several_messages_and_beside_others():
    built = TurnBuilder(
        [
            {"blocks": [{"think": "hm "}, {"say": "Well. "}, {"call": "alpha"}]},
            {"blocks": [{"say": "So. "}]},
        ]
    )
    first, last = built.positions("stored", "assistant")
    note = LogEntry("stored", "assistant", {"role": "assistant", "content": "One moment."})
    built.turn.log.insert(last, note)
    message = built.turn.log[first].data
    words = LogEntry("stored", "assistant", {"role": "assistant", "content": message["content"]})
    built.turn.log[first] = LogEntry("stored", "assistant", {**message, "content": None})
    built.turn.log.insert(first, words)
    assert built.clauses() == set()


def test_a_message_between_a_call_and_its_result_is_allowed():
    built = TurnBuilder()
    injected = LogEntry("stored", "system", {"role": "system", "content": "mind this"})
    built.turn.log.insert(built.positions("stored", "tool")[1], injected)
    assert built.clauses() == set()


def test_joined_messages_of_one_role_still_show_the_view():
    built = TurnBuilder()
    request = built.turn.log[built.positions("asked")[0]].data["messages"]
    request[:] = [{"role": "user", "content": "view1x\nGo."}]
    assert built.clauses() == set()


def test_a_cancelled_turn_owes_results_only_for_answers_that_were_stored():
    built = TurnBuilder()
    built.turn.is_cancelled = True
    built.turn.outcome = None
    built.turn.log[built.positions("event", "execution:end")[0]].data["status"] = "cancelled"
    first = built.positions("stored", "assistant")[0]
    results = built.positions("stored", "tool")
    assert "O13" in TurnBuilder.without(built, *results).clauses()
    assert built.without(first).clauses() & {"O11", "O12", "O13"} == set()


def test_an_answer_whose_storing_was_cancelled_may_be_stored_or_not():
    built = TurnBuilder()
    built.turn.is_cancelled = True
    position = built.positions("stored", "assistant")[0]
    built.turn.log[position] = LogEntry("storing", "assistant", built.turn.log[position].data)
    assert "O11" not in built.clauses()


def test_a_denied_tool_that_runs_and_a_reason_that_is_not_passed_on_break_o15():
    built = TurnBuilder()
    call = built.turn.script.calls[0]
    denial = {"action": "deny", "what": "deny", "word": "because-x", "number": call.number}
    built.turn.log.insert(
        built.positions("started", "alpha")[0], LogEntry("decision", "tool:pre", denial)
    )
    assert {clause for clause, _ in hook_violations(built.turn)} == {"O15"}
    built.without(*built.positions("started", "alpha"), *built.positions("returned", "alpha"))
    assert {clause for clause, _ in hook_violations(built.turn)} == {"O15"}
    built.turn.log[built.positions("stored", "tool")[0]].data["content"] = "Denied: because-x"
    assert list(hook_violations(built.turn)) == []


def test_a_tool_and_a_model_call_after_a_graceful_stop_break_o22():
    built = TurnBuilder()
    built.turn.log.insert(built.positions("started", "beta")[0], LogEntry("stop", "graceful"))
    words = [what for clause, what in stop_violations(built.turn) if clause == "O22"]
    assert len(words) == 2  # a tool was started, and the model was called


def stopped_between_announcement_and_start(tool: str) -> TurnBuilder:
    """A turn with a graceful stop after the ``tool:pre`` of one tool and before its call."""
    built = TurnBuilder()
    announced = built.positions("event", "tool:pre")
    [mine] = [at for at in announced if built.turn.log[at].data["tool_name"] == tool]
    built.turn.log.insert(mine + 1, LogEntry("stop", "graceful"))
    return built


def started_after_the_stop(built: TurnBuilder, *, is_on_island: bool) -> list[str]:
    found = stop_violations(built.turn, is_on_island=is_on_island)
    return [what for clause, what in found if clause == "O22" and "was started" in what]


def test_on_an_island_a_tool_that_was_announced_before_the_stop_may_still_start():
    built = stopped_between_announcement_and_start("beta")
    assert started_after_the_stop(built, is_on_island=True) == []
    assert started_after_the_stop(built, is_on_island=False) != []


def test_on_an_island_a_tool_that_was_announced_after_the_stop_breaks_o22():
    built = stopped_between_announcement_and_start("alpha")
    [words] = started_after_the_stop(built, is_on_island=True)
    assert words == "the tool 'beta' was started after a graceful stop"


def test_on_an_island_the_model_is_not_asked_after_a_graceful_stop():
    built = stopped_between_announcement_and_start("beta")
    words = [what for _, what in stop_violations(built.turn, is_on_island=True)]
    assert "the model was called after a graceful stop" in words
