"""Doubles that record their calls: tool, context, display, events and coordinator."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

import anyio

from amplifier._internal.json import copy_json
from amplifier.contracts import Hooks
from amplifier.kernel import AmplifierSession, ModuleCoordinator
from amplifier.loading import ModuleLoader
from amplifier.models import HookResult, ToolResult, UserMessageLevel
from amplifier.plan import merge_plans
from amplifier.testing.doubles.scripted import MockApprovalSystem

_UNSET: Any = object()
_ANY_OBJECT = {"type": "object", "properties": {}}
_POLL_SECONDS = 0.01


@final
class MockTool:
    """Returns the same result for every call, or computes it with ``respond``.

    Args:
        name: The name by which the model calls it.
        description: The description for the model.
        return_value: The output of a successful result, or a ToolResult, which is returned
            unchanged.
        output: Older name of ``return_value``.
        respond: A sync or async function of the input that returns the output instead.
        schema: The JSON Schema of the input. By default any object is valid.
        error: Makes every call fail with this message, or with this error of the result.
        raises: An exception to raise, as a tool does that breaks its contract.
        delay: Seconds to wait before answering.

    Attributes:
        calls: A copy of every input, in the order of the calls.

    Raises:
        ValueError: More than one kind of answer was passed.
    """

    def __init__(
        self,
        name: str = "mock_tool",
        *,
        description: str | None = None,
        return_value: Any = _UNSET,
        output: Any = _UNSET,
        respond: Callable[[dict[str, Any]], Any | Awaitable[Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        error: str | Mapping[str, Any] | None = None,
        raises: BaseException | type[BaseException] | None = None,
        delay: float = 0.0,
    ) -> None:
        answers = {
            "return_value": return_value is not _UNSET,
            "output": output is not _UNSET,
            "respond": respond is not None,
            "error": error is not None,
            "raises": raises is not None,
        }
        if sum(answers.values()) > 1:
            names = ", ".join(name for name, is_set in answers.items() if is_set)
            raise ValueError(
                f"MockTool {name!r} got {names}; expected one answer: give only one of them"
            )
        self.name = name
        self.description: str = f"Mock tool {name}." if description is None else description
        self.calls: list[dict[str, Any]] = []
        self._output = output if answers["output"] else return_value
        if not any(answers.values()):
            self._output = "Success"
        self._respond = respond
        self._schema = copy_json(dict(_ANY_OBJECT if schema is None else schema))
        self._error = {"message": error} if isinstance(error, str) else error
        self._raises = raises
        self._delay = delay

    def __repr__(self) -> str:
        return f"<MockTool {self.name!r} called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """Number of calls to `execute`, including cancelled ones."""
        return len(self.calls)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """The input of the latest call, or None before the first."""
        return self.calls[-1] if self.calls else None

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the input."""
        schema: dict[str, Any] = copy_json(self._schema)
        return schema

    # The contract gives the argument this name.
    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        """Record the call, wait if configured, and return the result."""
        self.calls.append(copy_json(input))
        if self._delay > 0:
            await anyio.sleep(self._delay)
        if self._raises is not None:
            raise self._raises
        if self._error is not None:
            return ToolResult(success=False, error=dict(self._error))
        output = self._output
        if self._respond is not None:
            output = self._respond(input)
            if inspect.isawaitable(output):
                output = await output
        return output if isinstance(output, ToolResult) else ToolResult(success=True, output=output)


@final
class MockContextManager:
    """Stores every message and never compacts.

    Args:
        messages: The initial messages, which are copied.

    Attributes:
        messages: The stored messages, for assertions. All methods take and return copies.
        requests: The arguments of every call to `get_messages_for_request`.
    """

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages: list[dict[str, Any]] = copy_json(messages or [])
        self.requests: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<MockContextManager with {len(self.messages)} messages>"

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message.

        Raises:
            ValueError: It has no role.
        """
        self.messages.append(_checked(message))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Return all messages, whatever the budget."""
        self.requests.append({"token_budget": token_budget, "provider": provider})
        return await self.get_messages()

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return all messages."""
        stored: list[dict[str, Any]] = copy_json(self.messages)
        return stored

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace all messages.

        Raises:
            ValueError: One of them has no role. Nothing was replaced.
        """
        self.messages[:] = [_checked(message) for message in messages]

    async def clear(self) -> None:
        """Remove all messages."""
        self.messages.clear()


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    if "role" not in message:
        raise ValueError(
            f"a message needs a 'role' such as 'user'; got the keys {sorted(message)!r}"
        )
    copied: dict[str, Any] = copy_json(message)
    return copied


@final
class MockDisplaySystem:
    """Records messages instead of showing them.

    Attributes:
        messages: Triples of text, level and source, in order.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []

    def __repr__(self) -> str:
        return f"<MockDisplaySystem {len(self.messages)} messages>"

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Record a message."""
        self.messages.append((message, level, source))


@final
class EventRecorder:
    """Records every event it receives and lets it pass.

    Attributes:
        events: Pairs of event name and payload, in order. The payloads are copies.
        emit: Alias of `record`, for code that expects a hook registry. The recorder is also
            callable, like a handler.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __repr__(self) -> str:
        return f"<EventRecorder {len(self.events)} events>"

    async def record(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """Record one event.

        Returns:
            ``continue`` with the payload, like a registry without handlers.
        """
        payload: dict[str, Any] = copy_json(dict(data or {}))
        self.events.append((event, payload))
        return HookResult(action="continue", data=copy_json(payload))

    emit = record
    """Alias of `record`, for code that expects a hook registry."""
    __call__ = record
    """Alias of `record`, for a registry that expects a handler."""

    def listen(self, hooks: Hooks, event: str = "*") -> Callable[[], None]:
        """Register with a registry, by default for every event.

        Returns:
            A function that unregisters the recorder.
        """
        return hooks.register(event, self, name="event-recorder")

    def get_events(self, event_type: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return the pairs of event name and payload, all of them or those of one name."""
        return [pair for pair in self.events if event_type is None or pair[0] == event_type]

    def names(self) -> list[str]:
        """Return the event names, in order."""
        return [event for event, _ in self.events]

    def clear(self) -> None:
        """Remove all events."""
        self.events.clear()


MINIMAL_PLAN: Mapping[str, Any] = {
    "session": {"orchestrator": "loop-test", "context": "context-test"}
}


class StandInSession:
    """The parts of a session that modules read. Turns need an `AmplifierSession`."""

    def __init__(self, session_id: str, parent_id: str | None, config: dict[str, Any]) -> None:
        self.session_id = session_id
        self.parent_id = parent_id
        self.config = config
        self.coordinator: Any = None

    def fork(
        self,
        overlay: dict[str, Any] | None = None,
        *,
        session_id: str | None = None,
        inherit: bool = True,
    ) -> AmplifierSession:
        """Return an unopened child session, with the modules of the coordinator's loader."""
        child = AmplifierSession(
            merge_plans(self.config if inherit else {}, overlay or {}),
            session_id=session_id,
            parent_id=self.session_id,
        )
        child.loader = child.coordinator.loader = self.coordinator.loader.for_child(
            child.coordinator
        )
        return child

    _merge_configs = staticmethod(AmplifierSession._merge_configs)


class TestCoordinator(ModuleCoordinator):
    """A real coordinator that needs no session and records all mounts.

    Background work and structured mounts need the task group of an `AmplifierSession` and raise an
    error here.

    Args:
        session_id: The id of the session.
        config: The mount plan. By default it is minimal.
        parent_id: The id of the parent session.
        modules: Modules for the loader, by id.
        approval_system: Answers questions. By default it is a `MockApprovalSystem`.
        display_system: Shows messages. By default it is a `MockDisplaySystem`.

    Attributes:
        mount_history: ``mount_point``, ``module`` and ``name`` of every mount, in order.
        unmount_history: ``mount_point`` and ``name`` of every unmount, in order.
    """

    # Otherwise pytest would collect it, because its name begins with Test.
    __test__ = False

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
        super().__init__(
            session, approval_system or MockApprovalSystem(), display_system or MockDisplaySystem()
        )
        session.coordinator = self
        self.loader: Any = ModuleLoader(self, modules=modules)
        self.mount_history: list[dict[str, Any]] = []
        self.unmount_history: list[dict[str, Any]] = []

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Mount and record a module, see `ModuleCoordinator.mount`."""
        # A test may mount any object at any mount point.
        result = super().mount(mount_point, module, name)  # type: ignore[call-overload, safe-super]
        self.mount_history.append({"mount_point": mount_point, "module": module, "name": name})
        return result

    def unmount(self, mount_point: str, name: str | None = None) -> Any:
        """Unmount a module and record it, see `ModuleCoordinator.unmount`."""
        result = super().unmount(mount_point, name)
        self.unmount_history.append({"mount_point": mount_point, "name": name})
        return result


MockCoordinator = TestCoordinator


def create_test_coordinator() -> TestCoordinator:
    """Return a `TestCoordinator` with two tools, ``echo`` and ``fail``, and a `MockContextManager`.

    They don't count as mounts of the test, so `TestCoordinator.mount_history` starts empty.
    """
    coordinator = TestCoordinator()
    echo = MockTool(
        "echo",
        description="Returns the text.",
        respond=lambda arguments: arguments.get("text", "Echo response"),
    )
    fail = MockTool("fail", description="Always fails.", error="This tool always fails")
    for point, module in (("tools", echo), ("tools", fail), ("context", MockContextManager())):
        coordinator.mounts.mount(point, module, None, None)
    return coordinator


async def wait_for(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 1.0) -> bool:
    """Poll a condition, sync or async, until it is true.

    Prefer an event that the awaited code sets, and use this only if there is none.

    Returns:
        True as soon as the condition is true, or False after ``timeout`` seconds on the loop's
        clock.
    """
    with anyio.move_on_after(timeout):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return True
            await anyio.sleep(_POLL_SECONDS)
    return False
