"""Type-checked only, by mypy and pyright: what `get` and `mount` of a coordinator accept and return."""

from __future__ import annotations

from typing import Any, assert_type

from amplifier import (
    AmplifierSession,
    ContextManager,
    ModuleCoordinator,
    Orchestrator,
    Provider,
    Tool,
    ToolResult,
)
from amplifier.contracts import (
    AsyncModuleSourceResolver,
    Coordinator,
    Hooks,
    ModuleSourceResolver,
    MountFunction,
    MountPoint,
)


class Echo:
    """A tool."""

    name = "echo"
    description = "Returns its input."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Return the input."""
        return ToolResult(success=True, output=input)


async def mount(coordinator: Coordinator, config: dict[str, Any]) -> None:
    """Mount the tool."""
    await coordinator.mount("tools", Echo())


def fits(coordinator: ModuleCoordinator) -> tuple[Coordinator, MountFunction]:
    """The kernel's coordinator is a `Coordinator`, and the function above a mount function."""
    return coordinator, mount


def modules_through_the_protocol(coordinator: Coordinator, name: str, point: MountPoint) -> None:
    """Each mount point has the type of its modules."""
    assert_type(coordinator.get("orchestrator"), Orchestrator | None)
    assert_type(coordinator.get("context"), ContextManager | None)
    assert_type(coordinator.get("providers"), dict[str, Provider])
    assert_type(coordinator.get("providers", name), Provider | None)
    assert_type(coordinator.get("tools"), dict[str, Tool])
    assert_type(coordinator.get("tools", name), Tool | None)
    assert_type(coordinator.get("tools", name="bash"), Tool | None)
    assert_type(coordinator.get("hooks"), Hooks)
    assert_type(
        coordinator.get("module-source-resolver"),
        ModuleSourceResolver | AsyncModuleSourceResolver | None,
    )
    assert_type(coordinator.get_mounted("tools"), dict[str, Tool])
    assert_type(coordinator.get_mounted("context"), ContextManager | None)
    coordinator.get(point)  # any of them


def modules_through_a_session(session: AmplifierSession) -> None:
    """The kernel's coordinator has the same types."""
    assert_type(session.coordinator.get("orchestrator"), Orchestrator | None)
    assert_type(session.coordinator.get("context"), ContextManager | None)
    assert_type(session.coordinator.get("providers"), dict[str, Provider])
    assert_type(session.coordinator.get("providers", "mock"), Provider | None)
    assert_type(session.coordinator.get("tools"), dict[str, Tool])
    assert_type(session.coordinator.get("tools", "bash"), Tool | None)
    assert_type(session.coordinator.get("hooks"), Hooks)
    assert_type(session.coordinator.get_mounted("providers"), dict[str, Provider])


async def mounting(
    coordinator: Coordinator,
    loop: Orchestrator,
    context: ContextManager,
    resolver: ModuleSourceResolver,
) -> None:
    """What fits its mount point is accepted."""
    await coordinator.mount("orchestrator", loop)
    await coordinator.mount("context", context)
    await coordinator.mount("tools", Echo(), name="second")
    await coordinator.mount("module-source-resolver", resolver)
    await coordinator.mount("session", loop, name="orchestrator")
    await coordinator.mount("session", context, name="context")


async def rejected(
    coordinator: Coordinator, core: ModuleCoordinator, context: ContextManager, text: str
) -> None:
    """What does not fit is a type error; an ignore that is not needed is one, too."""
    await coordinator.mount("providers", Echo())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await coordinator.mount("tools", context)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await coordinator.mount("tols", Echo())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await coordinator.mount("hooks", Echo())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await core.mount("providers", Echo())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    coordinator.get("tols")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    coordinator.get(text)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    core.get("tols")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
