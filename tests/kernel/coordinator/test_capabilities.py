"""Capabilities: named values that modules offer, with who offered them and what comes back when they are undone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.coordinator.ownership import Mounts


@pytest.fixture
def offers():
    return Mounts(None)


def test_value_of_any_kind_is_offered_and_the_last_registration_wins(offers, caplog):
    for value in (len, {"a": 1}, None, False):
        offers.offer("agents.list", value, "a")
        assert offers.capabilities["agents.list"] is value
    assert caplog.text == ""


def test_replacing_another_modules_is_logged_with_both_named(offers, caplog):
    offers.offer("x", 1, "a")
    offers.offer("x", 2, "b")
    offers.offer("x", 3, None)
    assert [record.getMessage() for record in caplog.records] == [
        "capability 'x' registered by a is replaced by b",
        "capability 'x' registered by b is replaced by the application",
    ]


@pytest.mark.parametrize("first", ["a", None])
def test_undoing_brings_back_what_was_replaced(offers, first):
    offers.offer("x", 1, first)
    offers.offer("x", 2, "b")
    offers.offer("y", 3, "b")
    offers.withdraw("b")
    assert offers.capabilities == {"x": 1}
    if first is not None:
        offers.withdraw(first)
        assert offers.capabilities == {}


def test_undoing_the_newest_of_three_brings_back_the_second(offers):
    for number, owner in enumerate("abc"):
        offers.offer("x", number, owner)
    offers.withdraw("c")
    assert offers.capabilities == {"x": 1}


def test_module_undone_under_another_one_does_not_come_back_later(offers):
    for number, owner in enumerate("abc"):
        offers.offer("x", number, owner)
    offers.withdraw("b")
    assert offers.capabilities == {"x": 2}
    offers.withdraw("c")
    assert offers.capabilities == {"x": 0}
    offers.withdraw("a")
    assert offers.capabilities == {}


@given(
    program=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y"])), max_size=12),
    undone=st.permutations("abcd"),
)
def test_whatever_modules_offered_undoing_all_of_them_leaves_the_applications(program, undone):
    offers = Mounts(None)
    offers.offer("x", "application's", None)
    for number, (owner, name) in enumerate(program):
        offers.offer(name, number, owner)
    for owner in undone:
        offers.withdraw(owner)
    assert offers.capabilities == {"x": "application's"}


def test_clearing_leaves_only_the_applications_and_the_same_dict(offers):
    values = offers.capabilities
    offers.offer("mine", 1, None)
    offers.offer("mine", 2, "a")
    offers.offer("yours", 3, "b")
    offers.withdraw(None)
    assert offers.capabilities is values
    assert values == {"mine": 1}
