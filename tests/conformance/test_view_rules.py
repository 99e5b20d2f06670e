"""The rules about views of a context, applied to views made by hand."""

from __future__ import annotations

import copy

import pytest

from amplifier.conformance.inputs.conversations import (
    built,
    newest_unit,
    prose,
    spoken,
    tokens,
    tool_turn,
)
from amplifier.conformance.oracles.view_rules import difference, is_whole, view_violations

HISTORY = [
    spoken(10, "system", 10),
    *(spoken(100 + number, "user", 30) for number in range(20)),
    *tool_turn(30, 2, 10, between="user"),
    spoken(60, "system", 10),
    spoken(70, "assistant", 10),
    spoken(80, "user", 10),
]
CALL = 21


def clauses(view, budget=None, history=HISTORY):
    return {clause for clause, _ in view_violations(history, copy.deepcopy(view), budget)}


def without(*positions):
    return [message for at, message in enumerate(HISTORY) if at not in positions]


def test_the_whole_conversation_and_its_newest_part_with_all_instructions_are_allowed():
    assert clauses(HISTORY) == set()
    assert clauses([HISTORY[0], *HISTORY[CALL:]]) == set()


def test_moving_instructions_to_the_beginning_shortening_and_summarising_are_allowed():
    systems = [message for message in HISTORY if message["role"] == "system"]
    rest = [message for message in HISTORY if message["role"] != "system"]
    shorter = [{**message, "content": message["content"][:9]} for message in rest[-2:]]
    merged = {"role": "system", "content": "\n".join(message["content"] for message in systems)}
    assert clauses([*systems, {"role": "user", "content": "[a summary]"}, *rest[-2:]]) == set()
    assert clauses([*systems, *shorter]) == set()
    assert clauses([merged, *rest[-2:]]) == set()


def test_an_empty_instruction_may_be_left_out_beside_others_but_not_alone():
    silent = {"role": "system", "content": None}
    last = spoken(80, "user", 10)
    assert clauses([HISTORY[0], last], history=[HISTORY[0], silent, last]) == set()
    assert clauses([last], history=[silent, last]) == {"C11"}


@pytest.mark.parametrize(
    ("view", "clause"),
    [
        (without(CALL), "C9"),
        (without(CALL + 3), "C9"),
        ([HISTORY[0], *HISTORY[CALL + 1 :]], "C9"),
        (without(0), "C11"),
        (HISTORY[:-1], "C12"),
        ([], "C12"),
        ([HISTORY[0], *reversed(HISTORY[1:-1]), HISTORY[-1]], "C10"),
        ([*HISTORY[1:-1], HISTORY[0], HISTORY[-1]], "C10"),
        ([*HISTORY, HISTORY[-1]], "C10"),
        ("text", "C7"),
    ],
)
def test_a_view_that_breaks_a_clause_is_found(view, clause):
    assert clause in clauses(view)


@pytest.mark.parametrize("left", ["", None, "go on"])
def test_what_is_left_of_the_newest_message_may_be_equal_to_an_older_one(left):
    newest = {"role": "user", "content": "go on and read the file"}
    history = [*HISTORY[:-1], {"role": "user", "content": left}, spoken(75, "assistant", 5), newest]
    assert clauses([*history[:-1], {"role": "user", "content": left}], history=history) == set()
    assert clauses(
        [message for message in history[:-1] if message["role"] == "system"], history=history
    ) == {"C12"}


def test_an_older_message_at_the_end_is_found_if_it_cannot_be_the_newest():
    history = [
        *HISTORY,
        {"role": "user", "content": "stop"},
        {"role": "user", "content": "go on and read the file"},
    ]
    assert clauses(history[:-1], history=history) == {"C12"}


def test_a_summary_that_begins_like_a_message_of_the_view_is_not_out_of_order():
    summary = {
        "role": "user",
        "content": f"{HISTORY[1]['content'][:20]}; {HISTORY[2]['content'][:20]}",
    }
    assert clauses([HISTORY[0], HISTORY[1], summary, *HISTORY[CALL:]]) == set()
    assert clauses([HISTORY[0], HISTORY[1], HISTORY[1], *HISTORY[CALL:]]) == {"C10"}


def test_of_equal_instructions_the_last_one_may_be_shown():
    rule = spoken(60, "system", 10)
    history = [rule, spoken(70, "user", 5), spoken(71, "assistant", 5), rule, spoken(80, "user", 5)]
    assert clauses(history[1:], history=history) == set()
    assert clauses([history[1], history[2], history[4], rule, history[4]], history=history) == {
        "C10"
    }


def test_a_view_is_measured_against_its_budget_without_what_must_be_shown():
    budget = tokens(HISTORY) // 5
    assert clauses(HISTORY, budget) == {"C7", "C8"}
    assert clauses([HISTORY[0], *HISTORY[CALL:]], budget) == set()
    long_last = [*HISTORY, {"role": "user", "content": prose(90, 5000)}]
    assert (
        clauses([*[m for m in long_last if m["role"] == "system"], long_last[-1]], 5, long_last)
        == set()
    )


def test_the_newest_unit_is_the_newest_message_and_what_belongs_to_it():
    history = built(
        [{"role": "user", "words": 3}, {"calls": 2, "words": 3, "between": "system", "says": True}]
    )
    assert newest_unit(history) == {1, 2, 4}
    assert newest_unit(HISTORY) == {len(HISTORY) - 1}


def test_stored_messages_may_have_more_fields_and_must_not_have_fewer_or_others():
    given = [{"role": "user", "content": "x", "n": 1}]
    assert difference([{"role": "user", "content": "x", "n": 1, "at": 5}], given) is None
    assert difference([{"role": "user", "content": "x"}], given) is not None
    assert difference([{"role": "user", "content": "x", "n": True}], given) is not None
    assert difference(given * 2, given) is not None
    assert difference(tuple(given), given) is not None


def test_a_view_is_whole_without_the_fields_that_are_only_for_the_store():
    assert is_whole(
        [{"role": "user", "content": "x", "metadata": {}}], [{"role": "user", "content": "x"}]
    )
    assert not is_whole([{"role": "user", "content": "x"}] * 2, [{"role": "user", "content": "x"}])
