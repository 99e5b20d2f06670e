"""The published test doubles, which suites inspect with the methods of mocks."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any, Self

import anyio

from amplifier.contracts import ContextManager, Hooks

from .coordinator import ModuleCoordinator
from .models import HookResult, ToolResult

__all__ = [
    "EventRecorder",
    "MockContextManager",
    "MockCoordinator",
    "MockTool",
    "ScriptedOrchestrator",
    "create_test_coordinator",
    "wait_for",
]


def _async_mock(**options: object) -> Any:
    """Return a mock, because suites check the calls of these doubles."""
    # The library needs mocks nowhere else, so they are imported with a suite's first double.
    return importlib.import_module("unittest.mock").AsyncMock(**options)


class MockCoordinator(ModuleCoordinator):
    """A coordinator without a session that keeps a history of mounts."""

    mount_history: list[dict[str, Any]]
    unmount_history: list[dict[str, Any]]

    def __new__(cls, *_: object, **__: object) -> Self:
        """Build the coordinator with a stand-in for a session."""
        session = types.SimpleNamespace(
            session_id="test-session",
            parent_id=None,
            config={"session": {"orchestrator": "test-orchestrator", "context": "test-context"}},
        )
        return super().__new__(
            cls, session, _async_mock(return_value={"approved": True}), _async_mock()
        )

    def __init__(self) -> None:
        self.mount_history = []
        self.unmount_history = []

    async def mount(self, mount_point: str, module: object, name: str | None = None) -> None:
        """Mount a module and record it."""
        self.mount_history.append({"mount_point": mount_point, "module": module, "name": name})
        await super().mount(mount_point, module, name)

    async def unmount(self, mount_point: str, name: str | None = None) -> None:
        """Unmount a module and record it."""
        self.unmount_history.append({"mount_point": mount_point, "name": name})
        await super().unmount(mount_point, name)


class MockTool:
    """A tool that always returns the same output."""

    def __init__(self, name: str = "mock_tool", output: object = "Success") -> None:
        self.name = name
        self.description: str = f"Mock tool: {name}"
        self.output = output
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.call_count: int = 0
        self.execute: Any = _async_mock(side_effect=self._execute)

    async def _execute(self, input: object) -> ToolResult:  # noqa: A002
        self.call_count += 1
        return ToolResult(success=True, output=self.output)


class MockContextManager:
    """A context that keeps its messages in a list."""

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages: list[dict[str, Any]] = messages or []
        self.add_message: Any = _async_mock(side_effect=self._add_message)
        self.get_messages: Any = _async_mock(return_value=self.messages)
        self.get_messages_for_request: Any = _async_mock(side_effect=self._get_messages_for_request)
        self.clear: Any = _async_mock()
        self._should_compact = _async_mock(return_value=False)
        self._compact_internal = _async_mock()

    async def _add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def _get_messages_for_request(
        self, token_budget: int | None = None, provider: object = None
    ) -> list[dict[str, Any]]:
        return list(self.messages)


class EventRecorder:
    """Replaces a hook registry and records events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def emit(self, event: str, data: dict[str, Any]) -> HookResult:
        """Record an event."""
        self.events.append((event, data.copy()))
        return HookResult(action="continue")

    async def record(self, event: str, data: dict[str, Any]) -> HookResult:
        """Record an event. This can be registered as a handler."""
        return await self.emit(event, data)

    def clear(self) -> None:
        """Drop all events."""
        self.events.clear()

    def get_events(self, event_type: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return the recorded events, all of them or those of one name."""
        if not event_type:
            return self.events.copy()
        return [event for event in self.events if event[0] == event_type]


class ScriptedOrchestrator:
    """Returns the configured answers, then ``DONE``."""

    def __init__(self, responses: list[str]) -> None:
        self.responses = responses
        self.call_count: int = 0

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: object,
        tools: object,
        hooks: Hooks,
        coordinator: object = None,
    ) -> str:
        """Store the exchange in the context and announce it."""
        response = "DONE"
        if self.call_count < len(self.responses):
            response = self.responses[self.call_count]
        self.call_count += 1
        await hooks.emit("session:start", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        await context.add_message({"role": "assistant", "content": response})
        await hooks.emit("session:end", {"response": response})
        return response


def create_test_coordinator() -> MockCoordinator:
    """Return a coordinator with two tools and a context."""
    coordinator = MockCoordinator()
    coordinator.mount_points["tools"]["echo"] = MockTool("echo", "Echo response")
    coordinator.mount_points["tools"]["fail"] = MockTool("fail", None)
    coordinator.mount_points["context"] = MockContextManager()
    return coordinator


async def wait_for(condition: Callable[[], bool], timeout: float = 1.0) -> bool:
    """Wait for a condition. Return False if it isn't met within ``timeout`` seconds."""
    with anyio.move_on_after(timeout):
        # There is no event to wait for.
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)
        return True
    return False
