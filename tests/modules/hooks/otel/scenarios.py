"""Turns of many kinds, each with the tree of spans it leaves, the same on both backends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
from opentelemetry import trace

from amplifier import AmplifierSession, ModuleLoader
from amplifier.errors import ExecutionDenied, LLMError
from amplifier.models import HookResult, ToolResult
from amplifier.testing import MockTool

Use = Callable[[AmplifierSession], Awaitable[None]]


def call(tool: str, call_id: str = "c1", **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "name": tool, "arguments": arguments}


def task(agent: str = "helper", call_id: str = "c1") -> dict[str, Any]:
    return call("task", call_id, agent=agent, instruction="help")


def calls(*given: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(given)}


async def one_turn(session: AmplifierSession) -> None:
    await session.execute("begin")


async def failing_turn(session: AmplifierSession) -> None:
    with pytest.raises(LLMError):
        await session.execute("begin")


async def denied_turn(session: AmplifierSession) -> None:
    with pytest.raises(ExecutionDenied):
        await session.execute("begin")


async def turn_in_a_span_of_the_application(session: AmplifierSession) -> None:
    with trace.get_tracer("application").start_as_current_span("request"):
        await session.execute("begin")
        with trace.get_tracer("application").start_as_current_span("afterwards"):
            pass


async def turn_stopped(session: AmplifierSession) -> None:
    """Stop at once as soon as the tool ``wait`` runs."""
    with pytest.raises(Exception, match="cancelled"):
        await _stopped_by("request_immediate", session)


async def turn_stopped_gracefully(session: AmplifierSession) -> None:
    await _stopped_by("request_graceful", session)


async def _stopped_by(request: str, session: AmplifierSession) -> None:
    token = session.coordinator.cancellation
    tool: Any = session.coordinator.get("tools", "wait")
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await tool.entered.wait()
            getattr(token, request)()
            if request == "request_graceful":
                tool.release.set()

        group.start_soon(stop)
        try:
            await session.execute("begin")
        except Exception as error:
            raised: Exception | None = error
        else:
            raised = None
    if raised is not None:
        raise raised


async def turn_in_a_cancelled_scope(session: AmplifierSession) -> None:
    tool: Any = session.coordinator.get("tools", "wait")
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await session.execute("begin")

        group.start_soon(run)
        await tool.entered.wait()
        group.cancel_scope.cancel()


async def turn_that_overruns(session: AmplifierSession) -> None:
    with pytest.raises(TimeoutError):
        await session.execute("begin", timeout=5)


class WaitingTool:
    """Waits until it is released; a test knows that it runs."""

    name = "wait"
    description = "Waits."

    def __init__(self) -> None:
        self.entered, self.release = anyio.Event(), anyio.Event()

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        self.entered.set()
        await self.release.wait()
        return ToolResult(output="waited")


class TracedTool:
    """Traces work of its own, as a library in it would: in this task, in another one, and in a worker thread."""

    name = "traced"
    description = "Traces."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        tracer = trace.get_tracer("library")

        def work() -> None:
            with tracer.start_as_current_span("in a thread"):
                pass

        async def other_task() -> None:
            with tracer.start_as_current_span("in a task"):
                pass

        with tracer.start_as_current_span("library"):
            await anyio.to_thread.run_sync(work)
            async with anyio.create_task_group() as group:
                group.start_soon(other_task)
        return ToolResult(output="traced")


@attrs.frozen(kw_only=True)
class Scenario:
    """A session and what is done with it.

    Attributes:
        answers: The script of provider-mock in the main session.
        children: The scripts of agents, by name.
        tree: The spans that it leaves.
    """

    answers: list[Any]
    tree: list[Any]
    children: dict[str, list[Any]] = attrs.Factory(dict)
    use: Use = one_turn
    loop: str = "loop-streaming"
    loop_config: dict[str, Any] = attrs.Factory(dict)
    denied: str | None = None
    max_depth: int = 1
    otel: dict[str, Any] = attrs.Factory(dict)

    def session(self) -> AmplifierSession:
        plan: dict[str, Any] = {
            "session": {
                "orchestrator": {
                    "module": self.loop,
                    "config": {"initial_delay": 0, **self.loop_config},
                },
                "context": "context-simple",
            },
            "providers": [_mock(self.answers)],
            "tools": [
                "tool-ours",
                {"module": "tool-task", "config": {"max_depth": self.max_depth}},
            ],
            "hooks": [{"module": "hooks-otel", "config": self.otel}, "hooks-denying"],
            "agents": {
                name: {"description": name, "providers": [_mock(s)]}
                for name, s in self.children.items()
            },
        }

        def fail(given: dict[str, Any]) -> Any:
            raise ValueError(given.get("text", "broken"))

        async def mount_tools(coordinator: Any, config: Any) -> None:
            tools: list[Any] = [
                WaitingTool(),
                TracedTool(),
                MockTool("echo", return_value="hi"),
                MockTool("fail", respond=fail),
            ]
            tools.append(
                MockTool(
                    "refuse",
                    respond=lambda given: ToolResult(success=False, error={"message": "no"}),
                )
            )
            for tool in tools:
                await coordinator.mount("tools", tool)

        async def mount_denying(coordinator: Any, config: Any) -> None:
            if self.denied is not None:
                coordinator.hooks.register(
                    self.denied, lambda event, data: HookResult(action="deny", reason="no")
                )

        modules: dict[str, Any] = {"tool-ours": mount_tools, "hooks-denying": mount_denying}
        return AmplifierSession(plan, loader=ModuleLoader(modules=modules))

    async def run(self) -> None:
        async with self.session() as session:
            await self.use(session)


def _mock(responses: list[Any]) -> dict[str, Any]:
    script = [*responses, *[responses[-1]] * 20]
    return {"module": "provider-mock", "config": {"responses": script}}


CHAT = ["chat mock-model", "unset"]


def turn(*below: list[Any], outcome: str = "unset", agent: str = "amplifier") -> list[Any]:
    return [f"invoke_agent {agent}", outcome, *sorted(below, key=str)]


def tool(name: str, *below: list[Any], outcome: str = "unset") -> list[Any]:
    return [f"execute_tool {name}", outcome, *below]


SCENARIOS: dict[str, Scenario] = {
    "an answer": Scenario(answers=["hello"], tree=[turn(CHAT)]),
    "a loop driven by events": Scenario(
        answers=[calls(call("echo")), "done"],
        loop="loop-events",
        tree=[turn(CHAT, tool("echo"), CHAT)],
    ),
    "a tool": Scenario(
        answers=[calls(call("echo")), "done"], tree=[turn(CHAT, tool("echo"), CHAT)]
    ),
    "parallel tools": Scenario(
        answers=[calls(*(call("echo", f"c{n}") for n in range(5))), "done"],
        tree=[turn(CHAT, *[tool("echo")] * 5, CHAT)],
    ),
    "a tool that raises": Scenario(
        answers=[calls(call("fail")), "done"],
        tree=[turn(CHAT, tool("fail", outcome="ValueError"), CHAT)],
    ),
    "a tool that reports a failure": Scenario(
        answers=[calls(call("refuse")), "done"],
        tree=[turn(CHAT, tool("refuse", outcome="_OTHER"), CHAT)],
    ),
    "an unknown tool": Scenario(
        answers=[calls(call("nothing")), "done"],
        tree=[turn(CHAT, tool("nothing", outcome="UnknownTool"), CHAT)],
    ),
    "a tool that a gate denies": Scenario(
        answers=[calls(call("echo")), "done"],
        denied="tool:pre",
        tree=[turn(CHAT, tool("echo", outcome="Denied"), CHAT)],
    ),
    "a prompt that a gate denies": Scenario(
        answers=["hello"], denied="prompt:submit", use=denied_turn, tree=[turn()]
    ),
    "a provider that fails": Scenario(
        answers=[{"error": {"type": "AuthenticationError", "message": "no"}}],
        use=failing_turn,
        tree=[turn(["chat mock-model", "AuthenticationError"], outcome="AuthenticationError")],
    ),
    "a retry": Scenario(
        answers=[{"error": {"type": "RateLimitError"}}, "hello"], tree=[turn(CHAT)]
    ),
    "a stream that breaks off": Scenario(
        answers=[{"text": "hel", "error": {"type": "StreamError", "retryable": False}}],
        use=failing_turn,
        tree=[turn(["chat mock-model", "StreamError"], outcome="StreamError")],
    ),
    "a tool whose libraries trace": Scenario(
        answers=[calls(call("traced")), "done"],
        tree=[
            turn(
                CHAT,
                tool(
                    "traced", ["library", "unset", ["in a task", "unset"], ["in a thread", "unset"]]
                ),
                CHAT,
            )
        ],
    ),
    "a child session": Scenario(
        answers=[calls(task()), "done"],
        children={"helper": [calls(call("echo")), "helped"]},
        tree=[turn(CHAT, tool("task", turn(CHAT, tool("echo"), CHAT, agent="helper")), CHAT)],
    ),
    "parallel child sessions": Scenario(
        answers=[calls(task("one", "c1"), task("two", "c2")), "done"],
        children={"one": [calls(call("traced")), "1"], "two": ["2"]},
        tree=[
            turn(
                CHAT,
                tool(
                    "task",
                    turn(
                        CHAT,
                        tool(
                            "traced",
                            ["library", "unset", ["in a task", "unset"], ["in a thread", "unset"]],
                        ),
                        CHAT,
                        agent="one",
                    ),
                ),
                tool("task", turn(CHAT, agent="two")),
                CHAT,
            )
        ],
    ),
    "a child of a child": Scenario(
        answers=[calls(task("one")), "done"],
        children={"one": [calls(task("two")), "1"], "two": ["2"]},
        max_depth=2,
        tree=[
            turn(
                CHAT,
                tool("task", turn(CHAT, tool("task", turn(CHAT, agent="two")), CHAT, agent="one")),
                CHAT,
            )
        ],
    ),
    "a child that fails": Scenario(
        answers=[calls(task()), "done"],
        children={"helper": [{"error": {"type": "AuthenticationError", "message": "no"}}]},
        tree=[
            turn(
                CHAT,
                tool(
                    "task",
                    turn(
                        ["chat mock-model", "AuthenticationError"],
                        outcome="AuthenticationError",
                        agent="helper",
                    ),
                    outcome="AgentFailed",
                ),
                CHAT,
            )
        ],
    ),
    "a turn in a span of the application": Scenario(
        answers=["hello"],
        use=turn_in_a_span_of_the_application,
        tree=[["request", "unset", ["afterwards", "unset"], turn(CHAT)]],
    ),
    "a stop while a tool runs": Scenario(
        answers=[calls(call("wait"))],
        use=turn_stopped,
        tree=[turn(CHAT, tool("wait", outcome="cancelled"), outcome="cancelled")],
    ),
    "a graceful stop": Scenario(
        answers=[calls(call("wait"))],
        use=turn_stopped_gracefully,
        tree=[turn(CHAT, tool("wait"), outcome="cancelled")],
    ),
    "a cancelled scope": Scenario(
        answers=[calls(call("wait"), call("echo", "c2"))],
        use=turn_in_a_cancelled_scope,
        tree=[turn(CHAT, tool("wait", outcome="cancelled"), tool("echo"), outcome="cancelled")],
    ),
}

OVERRUN = Scenario(
    answers=[{"text": "slow", "delay": 60}],
    use=turn_that_overruns,
    tree=[turn(["chat mock-model", "cancelled"], outcome="cancelled")],
)
"""In virtual time; the others have tools that work in threads, which a virtual clock does not wait for."""
