"""A coordinator without a session around it, for trying out `mount` functions and orchestrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier.kernel import AmplifierSession, ModuleCoordinator
from amplifier.loading import ModuleLoader
from amplifier.plan import merge_plans

from .approvals import MockApprovalSystem
from .contexts import MockContextManager
from .displays import MockDisplaySystem
from .tools import MockTool

MINIMAL_PLAN: Mapping[str, Any] = {"session": {"orchestrator": "loop-test", "context": "context-test"}}


class StandInSession:
    """What a module reads of its session, without turns: those need an `AmplifierSession`."""

    def __init__(self, session_id: str, parent_id: str | None, config: dict[str, Any]) -> None:
        self.session_id = session_id
        self.parent_id = parent_id
        self.config = config
        self.coordinator: Any = None

    def fork(
        self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None, inherit: bool = True
    ) -> AmplifierSession:
        """A real child session, not opened yet; it finds the modules that the coordinator's loader finds."""
        child = AmplifierSession(
            merge_plans(self.config if inherit else {}, overlay or {}), session_id=session_id, parent_id=self.session_id
        )
        child.loader = child.coordinator.loader = self.coordinator.loader.for_child(child.coordinator)
        return child

    _merge_configs = staticmethod(AmplifierSession._merge_configs)


class TestCoordinator(ModuleCoordinator):
    """A real coordinator that needs no session and remembers what was mounted.

    Background work and structured mounts need the task group of an `AmplifierSession` and are refused here.

    Args:
        session_id: The id of the session that is not there.
        config: The mount plan; a minimal one if absent.
        parent_id: The id of its parent.
        modules: Modules its loader knows, by id.

    Attributes:
        mount_history: ``mount_point``, ``module`` and ``name`` of everything mounted, in order.
        unmount_history: ``mount_point`` and ``name`` of everything unmounted, in order.
    """

    __test__ = False  # pytest takes every class called Test… for a test otherwise

    def __init__(
        self,
        session_id: str = "test-session",
        *,
        config: dict[str, Any] | None = None,
        parent_id: str | None = None,
        modules: Mapping[str, Any] | None = None,
        approval_system: Any = None,
        display_system: Any = None,
    ) -> None:
        plan = merge_plans(MINIMAL_PLAN, {}) if config is None else config
        session = StandInSession(session_id, parent_id, plan)
        super().__init__(session, approval_system or MockApprovalSystem(), display_system or MockDisplaySystem())
        session.coordinator = self
        self.loader: Any = ModuleLoader(self, modules=modules)
        self.mount_history: list[dict[str, Any]] = []
        self.unmount_history: list[dict[str, Any]] = []

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Mount and remember it; see `ModuleCoordinator.mount`."""
        done = super().mount(mount_point, module, name)  # type: ignore[call-overload, safe-super]  # a test may mount anything anywhere
        self.mount_history.append({"mount_point": mount_point, "module": module, "name": name})
        return done

    def unmount(self, mount_point: str, name: str | None = None) -> Any:
        """Unmount and remember it; see `ModuleCoordinator.unmount`."""
        done = super().unmount(mount_point, name)
        self.unmount_history.append({"mount_point": mount_point, "name": name})
        return done


MockCoordinator = TestCoordinator


def create_test_coordinator() -> TestCoordinator:
    """A `TestCoordinator` with two tools, ``echo`` and ``fail``, and a `MockContextManager`.

    They do not count as mounts of the test: `TestCoordinator.mount_history` begins empty.
    """
    coordinator = TestCoordinator()
    echo = MockTool("echo", description="Returns the text.", respond=lambda given: given.get("text", "Echo response"))
    fail = MockTool("fail", description="Always fails.", error="This tool always fails")
    for point, module in (("tools", echo), ("tools", fail), ("context", MockContextManager())):
        coordinator.mounts.mount(point, module, None, None)
    return coordinator
