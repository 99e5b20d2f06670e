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
