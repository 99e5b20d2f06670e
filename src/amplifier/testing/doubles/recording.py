"""Doubles that answer and remember: a tool, a context, a display, a recorder of events, and a coordinator without a session around it; waiting for what they show."""

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
_INTERVAL = 0.01
"""Seconds between two looks."""


@final
class MockTool:
    """Returns the same result for every call, or what ``respond`` makes of the input.

    Everything but the name is given by keyword.

    Args:
        name: The name the model calls it by.
        description: The description that the model gets.
        return_value: The output of a successful result; a ToolResult is returned as it is.
        output: The same, by its older name.
        respond: ``respond(input)``, sync or async, gives the output instead.
        schema: The JSON Schema of the input; any object if absent.
        error: Fail with this: a message, or the error of the result.
        raises: Raise this, as a tool that breaks its contract does.
        delay: Seconds to wait before answering.

    Attributes:
        calls: A copy of every input, in the order of the calls.

    Raises:
        ValueError: More than one of the answers was given.
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
        given = {
            "return_value": return_value is not _UNSET,
            "output": output is not _UNSET,
            "respond": respond is not None,
            "error": error is not None,
            "raises": raises is not None,
        }
        if sum(given.values()) > 1:
            named = ", ".join(argument for argument, is_given in given.items() if is_given)
            raise ValueError(
                f"MockTool {name!r} got {named}; expected one answer: give only one of them"
            )
        self.name = name
        self.description: str = f"Mock tool {name}." if description is None else description
        self.calls: list[dict[str, Any]] = []
        self._output = (
            "Success" if not any(given.values()) else output if given["output"] else return_value
        )
        self._respond = respond
        self._schema = copy_json(dict(_ANY_OBJECT if schema is None else schema))
        self._error = {"message": error} if isinstance(error, str) else error
        self._raises = raises
        self._delay = delay

    def __repr__(self) -> str:
        return f"<MockTool {self.name!r} called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """How often `execute` was called, calls that were cancelled meanwhile included."""
        return len(self.calls)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """The input of the newest call; None before the first."""
        return self.calls[-1] if self.calls else None

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        schema: dict[str, Any] = copy_json(self._schema)
        return schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
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
    """Keeps everything it is given and never compacts.

    Args:
        messages: What it holds from the beginning; copied.

    Attributes:
        messages: What is stored, for assertions. What the methods take and give are copies of it.
        requests: The arguments of every `get_messages_for_request`.
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
        """Everything stored, whatever the budget."""
        self.requests.append({"token_budget": token_budget, "provider": provider})
        return await self.get_messages()

    async def get_messages(self) -> list[dict[str, Any]]:
        """Everything stored."""
        stored: list[dict[str, Any]] = copy_json(self.messages)
        return stored

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything stored.

        Raises:
            ValueError: One of them has no role; nothing was replaced.
        """
        self.messages[:] = [_checked(message) for message in messages]

    async def clear(self) -> None:
        """Forget everything stored."""
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
    """Shows nothing and remembers everything.

    Attributes:
        messages: Triples of text, level and source, in order.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []

    def __repr__(self) -> str:
        return f"<MockDisplaySystem {len(self.messages)} messages>"

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Remember a message."""
        self.messages.append((message, level, source))


@final
class EventRecorder:
    """Records every event it receives and lets it pass.

    Attributes:
        events: Pairs of event name and payload, in order; the payloads are copies.
        emit: The same as `record`, for code that expects a hook registry; calling the recorder is the same, too, as a handler is called.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __repr__(self) -> str:
        return f"<EventRecorder {len(self.events)} events>"

    async def record(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """Remember one event.

        Returns:
            ``continue`` with the payload, like a registry without handlers.
        """
        payload: dict[str, Any] = copy_json(dict(data or {}))
        self.events.append((event, payload))
        return HookResult(action="continue", data=copy_json(payload))

    emit = record
    """The same, for code that expects a hook registry."""
    __call__ = record
    """The same, for a registry that expects a handler."""

    def listen(self, hooks: Hooks, event: str = "*") -> Callable[[], None]:
        """Register with a registry, for every event unless names are given.

        Returns:
            A function that ends it.
        """
        return hooks.register(event, self, name="event-recorder")

    def get_events(self, event_type: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """The pairs of event name and payload, all of them or those of one name."""
        return [pair for pair in self.events if event_type is None or pair[0] == event_type]

    def names(self) -> list[str]:
        """The event names, in order."""
        return [event for event, _ in self.events]

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()


MINIMAL_PLAN: Mapping[str, Any] = {
    "session": {"orchestrator": "loop-test", "context": "context-test"}
}


class StandInSession:
    """What a module reads of its session, without turns: those need an `AmplifierSession`."""

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
        """A real child session, not opened yet; it finds the modules that the coordinator's loader finds."""
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
        super().__init__(
            session, approval_system or MockApprovalSystem(), display_system or MockDisplaySystem()
        )
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
    echo = MockTool(
        "echo",
        description="Returns the text.",
        respond=lambda given: given.get("text", "Echo response"),
    )
    fail = MockTool("fail", description="Always fails.", error="This tool always fails")
    for point, module in (("tools", echo), ("tools", fail), ("context", MockContextManager())):
        coordinator.mounts.mount(point, module, None, None)
    return coordinator


async def wait_for(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 1.0) -> bool:
    """Look again and again until ``condition()``, sync or async, is true.

    An event that the awaited code sets is better wherever there is one; this is for what gives no sign.

    Returns:
        True as soon as it is; False after ``timeout`` seconds, on the loop's clock.
    """
    with anyio.move_on_after(timeout):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return True
            await anyio.sleep(_INTERVAL)
    return False
