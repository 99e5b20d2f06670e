"""Capabilities: named values that modules offer, with who offered them and what comes back when they are undone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.coordinator.capabilities import Capabilities
from amplifier.kernel.coordinator.ownership import Ledger


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def capabilities(ledger):
    return Capabilities(ledger)


def test_value_of_any_kind_is_offered_and_the_last_registration_wins(capabilities, caplog):
    for value in (len, {"a": 1}, None, False):
        capabilities.register("agents.list", value, "a")
        assert capabilities.values["agents.list"] is value
    assert caplog.text == ""


def test_replacing_another_modules_is_logged_with_both_named(capabilities, caplog):
    capabilities.register("x", 1, "a")
    capabilities.register("x", 2, "b")
    capabilities.register("x", 3, None)
    assert [record.getMessage() for record in caplog.records] == [
        "capability 'x' registered by a is replaced by b",
        "capability 'x' registered by b is replaced by the application",
    ]


@pytest.mark.parametrize("name", ["", None, 5, b"x", ["x"]])
def test_name_must_be_a_non_empty_str(capabilities, name):
    with pytest.raises(TypeError, match=r"such as 'agents\.list'"):
        capabilities.register(name, 1, None)
    assert capabilities.values == {}


@pytest.mark.parametrize("first", ["a", None])
def test_undoing_brings_back_what_was_replaced(capabilities, ledger, first):
    capabilities.register("x", 1, first)
    capabilities.register("x", 2, "b")
    capabilities.register("y", 3, "b")
    ledger.undo("b")
    assert capabilities.values == {"x": 1}
    if first is not None:
        ledger.undo(first)
        assert capabilities.values == {}


def test_undoing_the_newest_of_three_brings_back_the_second(capabilities, ledger):
    for number, owner in enumerate("abc"):
        capabilities.register("x", number, owner)
    ledger.undo("c")
    assert capabilities.values == {"x": 1}


def test_module_undone_under_another_one_does_not_come_back_later(capabilities, ledger):
    for number, owner in enumerate("abc"):
        capabilities.register("x", number, owner)
    ledger.undo("b")
    assert capabilities.values == {"x": 2}
    ledger.undo("c")
    assert capabilities.values == {"x": 0}
    ledger.undo("a")
    assert capabilities.values == {}


@given(
    program=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y"])), max_size=12),
    undone=st.permutations("abcd"),
)
def test_whatever_modules_offered_undoing_all_of_them_leaves_the_applications(program, undone):
    ledger = Ledger()
    capabilities = Capabilities(ledger)
    capabilities.register("x", "application's", None)
    for number, (owner, name) in enumerate(program):
        capabilities.register(name, number, owner)
    for owner in undone:
        ledger.undo(owner)
    assert capabilities.values == {"x": "application's"}


def test_clearing_leaves_only_the_applications_and_the_same_dict(capabilities, ledger):
    values = capabilities.values
    capabilities.register("mine", 1, None)
    capabilities.register("mine", 2, "a")
    capabilities.register("yours", 3, "b")
    ledger.undo_all()
    assert capabilities.values is values
    assert values == {"mine": 1}
