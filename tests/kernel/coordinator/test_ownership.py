"""What modules have registered is known by its owner, taken back with it, and refused when it comes too late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import ModuleCoordinator, SessionStateError
from tests._support.small_agent import Echo, agent


def nothing(*args):
    """A handler, a contributor, a cleanup."""


REGISTRATIONS = {
    "a mount": lambda view: view.mount("tools", Echo("late")),
    "a handler": lambda view: view.hooks.register("late", nothing, name="late"),
    "a capability": lambda view: view.register_capability("late", 1),
    "a contributor": lambda view: view.register_contributor("late", "late", nothing),
    "background work": lambda view: view.start_soon(nothing),
}


def coordinator() -> Any:
    """One of its own; the type is none of the checker's business, because nothing that mounts is awaited here."""
    return ModuleCoordinator()


def registered(core):
    """Everything that modules and the application have registered."""
    return (
        dict(core.get("tools")),
        core.get("context"),
        core.hooks.list_handlers(),
        sorted(core.to_dict()["capabilities"]),
        core.channels,
    )


# ── entries ──────────────────────────────────────────────────────────────────────────────────────


def test_mount_and_capability_are_separate_slots():
    core = coordinator()
    for owner in "ab":
        view = core.view_for(owner)
        view.mount("tools", f"tool of {owner}", "x")
        view.mount("providers", f"provider of {owner}", "x")
        view.register_capability("x", f"capability of {owner}")
    core.unregister_owner("b")
    assert (core.get("tools"), core.get("providers")) == (
        {"x": "tool of a"},
        {"x": "provider of a"},
    )
    assert core.get_capability("x") == "capability of a"


@pytest.mark.parametrize("put_there", [None, [], "nonsense"])
async def test_session_closes_with_replaced_tools(put_there):
    async def mount(coordinator, config):
        coordinator.mount("tools", Echo("x"))
        coordinator.mount_points["tools"] = put_there

    async with agent(tools={"tool-a": mount}) as session:
        pass
    assert session.statistics().state == "closed"


@given(
    program=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.sampled_from(
                ["mount", "unmount", "capability", "handler", "remove", "contributor", "undo"]
            ),
            st.sampled_from("xy"),
        ),
        max_size=15,
    )
)
def test_closing_leaves_application_changes(program):
    """Against a coordinator on which only the application acted."""
    core, alone = coordinator(), coordinator()
    removers = []
    for owner, what, name in program:
        for one in (core, alone) if owner is None else (core,):
            where = one if owner is None else one.view_for(owner)
            if what == "mount":
                where.mount("tools", f"{owner}'s", name)
            elif what == "unmount" and owner in (None, one.mounts.owner_of("tools", name)):
                where.unmount("tools", name)
            elif what == "capability":
                where.register_capability(name, f"{owner}'s")
            elif what == "handler":
                removers.append(where.hooks.register(name, nothing, name=f"{owner}'s"))
            elif what == "remove" and removers:
                removers.pop()()
            elif what == "contributor":
                where.register_contributor(name, f"{owner}'s", nothing)
            elif what == "undo" and owner is not None:
                core.unregister_owner(owner)
    core.end_closing()
    assert core.mounts._layers == {}
    own = [registered(one) for one in (core, alone)]
    assert (own[0][0], own[0][3], own[0][4]) == (own[1][0], own[1][3], own[1][4])
    assert {name for names in own[0][2].values() for name in names} <= {"None's"}


# ── what comes too late ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", REGISTRATIONS)
async def test_undone_module_registers_nothing(what):
    views = {}

    def module(name, error=None):
        async def mount(coordinator, config):
            views[name] = coordinator
            if error is not None:
                coordinator.mount("tools", Echo("gone"))
                raise error

        return mount

    async with agent(
        tools={"tool-bad": module("bad", OSError("no")), "tool-good": module("good")}
    ) as session:
        before = registered(session.coordinator)
        with pytest.raises(SessionStateError, match=f"{what} of module 'tool-bad' is refused"):
            REGISTRATIONS[what](views["bad"])
        assert registered(session.coordinator) == before
        if what != "background work":
            REGISTRATIONS[what](views["good"])
            assert registered(session.coordinator) != before
        views["bad"].unmount("tools", "gone")
        views["bad"].hooks.unregister("late")


async def test_undone_module_can_host_nothing():
    """Its late cleanup runs at the end."""
    views, log = [], []

    async def mount(coordinator, config):
        views.append(coordinator)
        raise OSError("no")

    class Manager:
        async def __aenter__(self):
            log.append("entered")

        async def __aexit__(self, *details):
            log.append("left")

    async with agent(tools={"tool-bad": mount}):
        with pytest.raises(SessionStateError, match="'tool-bad' is refused"):
            await views[0].host(Manager())
        views[0].register_cleanup(lambda: log.append("cleaned up"))
        assert log == []
    assert log == ["cleaned up"]


async def test_registrations_in_undo_cleanup_are_removed():
    async def mount(coordinator, config):
        def clean_up():
            coordinator.mount("tools", Echo("phoenix"))
            coordinator.hooks.register("e", nothing)

        coordinator.register_cleanup(clean_up)
        raise OSError("no")

    async with agent(tools={"tool-bad": mount}) as session:
        assert session.coordinator.get("tools") == {}
        assert session.coordinator.hooks.list_handlers() == {}


@pytest.mark.parametrize("what", [*REGISTRATIONS, "a cleanup"])
async def test_module_registers_nothing_after_closing(
    what,
):
    """Nor when the session is opened again."""
    views = []

    async def mount(coordinator, config):
        views.append(coordinator)
        coordinator.hooks.register("kept", nothing)

    register = {**REGISTRATIONS, "a cleanup": lambda view: view.register_cleanup(nothing)}[what]
    session = agent(tools={"tool-a": mount})
    await session.initialize()
    await session.cleanup()
    before = registered(session.coordinator)
    with pytest.raises(
        SessionStateError, match=f"{what} of module 'tool-a' comes too late: its session is closed"
    ):
        register(views[0])
    assert registered(session.coordinator) == before
    await session.initialize()
    with pytest.raises(SessionStateError, match="comes too late"):
        register(views[0])
    if what != "background work":
        register(views[1])
    await session.cleanup()
    assert registered(session.coordinator) == before


async def test_undone_module_restarts_with_new_view():
    core = coordinator()
    old = core.view_for("tool-a")
    await core.undo("tool-a")
    new = core.view_for("tool-a")
    new.mount("tools", Echo("x"))
    new.hooks.register("e", nothing)
    with pytest.raises(SessionStateError):
        old.mount("tools", Echo("x"))
    await core.undo("tool-b")
    new.register_capability("c", 1)
    await core.undo("tool-a")
    for view in (old, new):
        with pytest.raises(SessionStateError):
            view.hooks.register("e", nothing)


async def test_interrupt_in_cleanup_does_not_stop_undo():
    core = coordinator()
    view = core.view_for("tool-a")
    view.mount("tools", Echo("x"))

    def interrupt():
        raise KeyboardInterrupt

    view.register_cleanup(interrupt)
    with pytest.raises(KeyboardInterrupt):
        await core.undo("tool-a")
    assert core.get("tools") == {}
