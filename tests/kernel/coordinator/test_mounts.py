"""Mount points and capabilities: what is where, who mounted it, and what comes back when that module is undone."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.coordinator.ownership import COMPLETED, MountTable

SINGLE = ["orchestrator", "context", "module-source-resolver"]
NAMED = ["providers", "tools"]


@pytest.fixture
def mounts():
    return MountTable("the registry")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# ── mounting, reading, taking away ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", SINGLE)
def test_single_point_holds_one_module(mounts, point):
    mounts.mount(point, "first", None, None)
    mounts.mount(point, "second", "a name", None)
    assert mounts.get(point) == mounts.get(point, "any name") == "second"
    mounts.unmount(point, "any name")
    assert mounts.get(point) is None


@pytest.mark.parametrize("point", NAMED)
def test_named_point_keeps_order(mounts, point):
    mounts.mount(point, 1, "b", None)
    mounts.mount(point, 2, "a", None)
    mounts.mount(point, SimpleNamespace(name="own"), None, None)
    assert list(mounts.get(point)) == ["b", "a", "own"]
    assert mounts.get(point, "a") == 2
    assert mounts.get(point, "absent") is None
    mounts.unmount(point, "b")
    mounts.unmount(point, "absent")
    assert list(mounts.get(point)) == ["a", "own"]


@pytest.mark.parametrize("point", ["orchestrator", "context"])
def test_session_with_name_is_synonym(mounts, point):
    mounts.mount("session", "module", point, "loop-x")
    assert mounts.get(point) == mounts.get("session", point) == "module"
    assert mounts.owner_of(point) == "loop-x"
    mounts.unmount("session", point, "loop-x")
    assert mounts.get(point) is None


def test_hooks_are_registered_not_mounted(mounts):
    with pytest.raises(ValueError, match="registered directly with the HookRegistry"):
        mounts.mount("hooks", object(), "x", None)
    mounts.unmount("hooks", None)
    assert mounts.get("hooks") == "the registry"


def test_foreign_named_point_is_refused(mounts):
    mounts.points["tools"] = ["not a dict"]
    with pytest.raises(ValueError, match="was replaced by list"):
        mounts.mount("tools", object(), "x", None)
    with pytest.raises(ValueError, match="was replaced by list"):
        mounts.unmount("tools", "x")


async def test_mount_result_is_awaitable_without_checkpoint():
    for _ in range(2):
        steps = COMPLETED.__await__()
        with pytest.raises(StopIteration) as ended:
            next(steps)
        assert ended.value.value is None
        await COMPLETED


# ── owners ───────────────────────────────────────────────────────────────────────────────────────


def test_replacement_of_or_by_application_is_logged(mounts, caplog):
    mounts.mount("context", 1, None, None)
    mounts.mount("context", 2, None, "context-a")
    mounts.mount("context", 3, None, None)
    assert warnings(caplog) == [
        "context mounted by the application is replaced by context-a",
        "context mounted by context-a is replaced by the application",
    ]
    assert mounts.owner_of("context") is None


def test_orchestrator_replacement_is_never_silent(mounts, caplog):
    mounts.mount("orchestrator", 1, None, "loop-a")
    mounts.mount("orchestrator", 2, None, "loop-a")
    assert len(warnings(caplog)) == 1


# ── undoing ──────────────────────────────────────────────────────────────────────────────────────


def test_undoing_module_leaves_others(mounts):
    mounts.mount("tools", "t", "x", "a")
    mounts.mount("providers", "p", "y", "b")
    del mounts.points["tools"]  # by hand, while a module has something there
    mounts.unregister_owner("b")
    assert mounts.points["providers"] == {}


@pytest.mark.parametrize(("point", "name"), [("tools", "x"), ("context", None)])
@pytest.mark.parametrize("first", ["a", None])
def test_undoing_module_restores_predecessor(mounts, point, name, first):
    mounts.mount(point, 1, name, first)
    mounts.mount(point, 2, name, "b")
    mounts.mount(point, 3, name, "b")
    mounts.unregister_owner("b")
    assert mounts.get(point, name) == 1
    assert mounts.owner_of(point, name) == first
    mounts.unregister_owner("b")
    assert mounts.get(point, name) == 1


def test_undone_predecessor_does_not_return(mounts):
    for number, owner in enumerate("abc"):
        mounts.mount("tools", number, "x", owner)
    mounts.unregister_owner("b")
    assert mounts.get("tools", "x") == 2
    mounts.unregister_owner("c")
    assert mounts.get("tools", "x") == 0
    mounts.unregister_owner("a")
    assert mounts.get("tools") == {}


def test_unmount_restores_replaced_module(mounts):
    mounts.mount("tools", 1, "x", "a")
    mounts.mount("tools", 2, "x", "b")
    mounts.unmount("tools", "x", "b")
    assert mounts.get("tools") == {"x": 1}
    assert mounts.owner_of("tools", "x") == "a"


def test_application_empties_slot_permanently(mounts):
    mounts.mount("tools", 1, "x", "a")
    mounts.mount("tools", 2, "x", "b")
    mounts.unmount("tools", "x")
    mounts.unregister_owner("b")
    assert mounts.get("tools") == {}


@given(
    program=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y"]), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    undone=st.permutations("abcd"),
)
def test_undoing_all_modules_leaves_application(program, undone):
    mounts = MountTable(None)
    mounts.mount("tools", "application's", "x", None)
    mounts.register_capability("x", "application's", None)
    for number, (owner, name, unmounts) in enumerate(program):
        mounts.register_capability(name, number, owner)
        if not unmounts:
            mounts.mount("tools", number, name, owner)
        elif (
            mounts.owner_of("tools", name) in (None, owner)
            and mounts.get("tools", name) != "application's"
        ):
            mounts.unmount("tools", name, owner)
    for owner in undone:
        mounts.unregister_owner(owner)
    assert mounts.get("tools") == mounts.capabilities == {"x": "application's"}


# ── instances of one provider ────────────────────────────────────────────────────────────────────


def test_instance_under_taken_name_is_logged(mounts, caplog):
    mounts.mount("providers", 1, "fast", "a")
    mounts.instance = ("b", "fast")
    mounts.mount("providers", 2, "mock", "b")
    assert warnings(caplog) == ["providers 'fast' mounted by a is replaced by b"]
    mounts.unregister_owner("b")
    assert mounts.get("providers") == {"fast": 1}


# ── capabilities ─────────────────────────────────────────────────────────────────────────────────


def test_last_capability_registration_wins(mounts, caplog):
    for value in (len, {"a": 1}, None, False):
        mounts.register_capability("agents.list", value, "a")
        assert mounts.capabilities["agents.list"] is value
    assert caplog.text == ""
    mounts.register_capability("agents.list", 1, None)
    assert warnings(caplog) == [
        "capability 'agents.list' registered by a is replaced by the application"
    ]
