"""A module's view of the coordinator: the same object, but everything registered through it carries the module's id."""

from __future__ import annotations

import pytest

from amplifier import ContractError, ModuleCoordinator
from tests._support.small_agent import Echo


@pytest.fixture
def core():
    return ModuleCoordinator()


@pytest.fixture
def view(core):
    return core.view_for("tool-a")


async def test_view_registrations_are_tagged_and_undone(core, view):
    log = []
    assert await view.mount("tools", Echo("a")) is None
    view.mount("context", "context")
    view.hooks.register("e", lambda event, data: log.append("heard"), name="h")
    view.hooks.on("e", lambda event, data: log.append("heard too"), name="i")
    view.register_capability("c", 1)
    view.register_contributor("x", "n", lambda: 1)
    view.register_cleanup(lambda: log.append("cleaned up"))
    assert core.mounts.owner_of("tools", "a") == core.mounts.owner_of("context") == "tool-a"
    await core.hooks.emit("e")
    assert log == ["heard", "heard too"]
    await core.undo("tool-a")
    assert log == ["heard", "heard too", "cleaned up"]
    await core.hooks.emit("e")
    assert (core.get("tools"), core.get("context"), core.get_capability("c")) == ({}, None, None)
    assert core.channels == {}
    assert core.hooks.list_handlers() == {}
    assert log == ["heard", "heard too", "cleaned up"]


# ── what a module may not take away ──────────────────────────────────────────────────────────────


async def test_module_cannot_unmount_others(core, view):
    core.view_for("tool-b").mount("tools", Echo("b"))
    core.mount("tools", Echo("application"))
    core.mount("context", Echo("memory"))
    with pytest.raises(ContractError, match="the application"):
        view.unmount("context")
    assert core.get("context") is not None
    for name, owner in (("b", "'tool-b'"), ("application", "'the application'")):
        with pytest.raises(ContractError, match=owner):
            view.unmount("tools", name)
    view.mount("tools", Echo("a"))
    assert await view.unmount("tools", "a") is None
    view.unmount("tools", "a")
    assert list(core.get("tools")) == ["b", "application"]


async def test_module_cleanup_covers_own_only(core, view):
    log = []
    core.register_cleanup(lambda: log.append("application"))
    core.view_for("tool-b").register_cleanup(lambda: log.append("b"))
    view.register_cleanup(lambda: log.append("a1"))
    view.register_cleanup(lambda: log.append("a2"))
    await view.cleanup()
    assert log == ["a2", "a1"]
    await core.cleanup()
    assert log == ["a2", "a1", "b", "application"]


# ── passing through ──────────────────────────────────────────────────────────────────────────────


def test_module_attributes_are_shared_by_views(core, view):
    view.registry = ["set by a"]
    other = core.view_for("tool-b")
    assert core.registry is other.registry is view.registry
    core.registry = "set by the application"
    assert view.registry == "set by the application"
    other.session_state["k"] = 1
    assert view.session_state == {"k": 1}
    del view.registry
    assert not hasattr(core, "registry")
    assert not hasattr(view, "registry")


def test_view_reads_same_as_coordinator(core, view):
    for name in (
        "session",
        "session_id",
        "parent_id",
        "config",
        "loader",
        "cancellation",
        "channels",
    ):
        assert getattr(view, name) == getattr(core, name)
    for name in (
        "injection_size_limit",
        "injection_budget_per_turn",
        "approval_system",
        "display_system",
    ):
        assert getattr(view, name) is getattr(core, name)
    assert {**view.mount_points, "hooks": core.hooks} == core.mount_points
    assert view.get("tools") is core.get("tools")
    assert view.get_mounted("tools") is core.get("tools")
    assert view.module_id == "tool-a"
    assert view.to_dict() == core.to_dict()


@pytest.mark.parametrize(
    "name",
    ["session_id", "parent_id", "config", "hooks", "mount_points", "cancellation", "module_id"],
)
def test_view_keeps_read_only_attributes(core, view, name):
    before = getattr(core, name)
    with pytest.raises(AttributeError):
        setattr(view, name, "forged")
    assert getattr(core, name) is before


# ── the hooks of a module, however it gets them ──────────────────────────────────────────────────

WAYS = {
    "hooks": lambda coordinator: coordinator.hooks,
    "get": lambda coordinator: coordinator.get("hooks"),
    "get with a name": lambda coordinator: coordinator.get("hooks", "any"),
    "get_mounted": lambda coordinator: coordinator.get_mounted("hooks"),
    "mount_points": lambda coordinator: coordinator.mount_points["hooks"],
    "mount_points.get": lambda coordinator: coordinator.mount_points.get("hooks"),
    "items of mount_points": lambda coordinator: dict(coordinator.mount_points.items())["hooks"],
    "a copy of mount_points": lambda coordinator: {**coordinator.mount_points}["hooks"],
}
OF_EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@OF_EVERY_WAY
async def test_handlers_belong_to_registering_module(core, view, way):
    assert way(view) is view.hooks
    assert way(core) is core.hooks
    way(view).register("e", lambda event, data: None, name="mine")
    assert [registration.name for registration in core.hooks.registrations_of("tool-a")] == ["mine"]
    way(core.view_for("tool-b")).unregister("mine")
    assert core.hooks.list_handlers() == {"e": ["mine"]}
    await core.undo("tool-a")
    assert core.hooks.list_handlers() == {}


def test_view_mount_points_are_live(core, view):
    points = view.mount_points
    core.mount("tools", "later", "x")
    assert points["tools"] == {"x": "later"}
    points["context"] = "put there by hand"
    assert core.get("context") == "put there by hand"
    assert list(points) == list(core.mount_points)
    assert len(points) == len(core.mount_points)
