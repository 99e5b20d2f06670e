"""Module contracts: the orchestrator contract, with the loop its snippets make up."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from amplifier import (
    ChatRequest,
    HookRegistry,
    HookResult,
    Message,
    ModuleCoordinator,
    Orchestrator,
    ToolCallBlock,
    ToolResult,
)
from amplifier.testing import (
    EventRecorder,
    MockContextManager,
    MockProvider,
    MockTool,
)
from tests.seeds.seed_sessions import mounting, seed_session


class MyOrchestrator:
    """The document's loop: its event, hook, context and provider snippets, one after another.

    The document reads ``tool_call.input``, which the content block has and `ToolCall` does not (there it is
    ``arguments``), so the calls are taken from the blocks. It answers a denial with ``ToolResult(is_error=True)``; the
    model has no such field (its own contract has ``success``), so that is ``success=False``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    async def execute(self, prompt, context, providers, tools, hooks):
        config = self.config
        await context.add_message({"role": "user", "content": prompt})

        provider_name = config.get("default_provider", next(iter(providers.keys())))
        provider = providers[provider_name]
        model_name = "mock-model"

        while True:
            messages = await context.get_messages_for_request()
            request = ChatRequest(messages=[Message(role="user", content=prompt)])

            await hooks.emit(
                "provider:request",
                {
                    "provider": provider_name,
                    "messages": messages,
                    "model": model_name,
                },
            )

            response = await provider.complete(request)

            await hooks.emit(
                "provider:response",
                {
                    "provider": provider_name,
                    "response": response,
                    "usage": response.usage,
                },
            )

            await context.add_message({"role": "assistant", "content": response.content})
            tool_calls = [block for block in response.content if isinstance(block, ToolCallBlock)]
            if not tool_calls:
                return response.content[-1].text
            for tool_call in tool_calls:
                result = await self._run_tool(tool_call, context, tools, hooks)
                await context.add_message(
                    {
                        "role": "tool",
                        "tool_call_id": tool_call.id,
                        "content": result.output,
                    }
                )

    async def _run_tool(self, tool_call, context, tools, hooks):
        data = {
            "tool_name": tool_call.name,
            "tool_input": tool_call.input,
        }
        pre_result = await hooks.emit("tool:pre", data)

        if pre_result.action == "deny":
            return ToolResult(success=False, output=pre_result.reason)

        if pre_result.action == "modify":
            data = pre_result.data

        if pre_result.action == "inject_context":
            await context.add_message(
                {
                    "role": pre_result.context_injection_role,
                    "content": pre_result.context_injection,
                }
            )

        if pre_result.action == "ask_user":
            approved = await self.request_approval(pre_result)
            if not approved:
                return ToolResult(success=False, output="User denied")

        result = await tools[tool_call.name].execute(data["tool_input"])

        await hooks.emit(
            "tool:post",
            {
                "tool_name": tool_call.name,
                "tool_input": data["tool_input"],
                "tool_result": result,
            },
        )
        return result

    async def request_approval(self, result: HookResult) -> bool:
        return self.config.get("approve", False)


async def mount(coordinator: ModuleCoordinator, config: dict) -> Orchestrator | Callable | None:
    orchestrator = MyOrchestrator(config=config)
    await coordinator.mount("session", orchestrator, name="orchestrator")  # type: ignore[call-overload]  # see below
    return orchestrator  # type: ignore[return-value]  # the document's loop takes no **kwargs


def test_protocol_takes_documented_arguments() -> None:
    """Our Protocol takes ``**kwargs`` as well; a loop without them gets only the keywords it accepts (DESIGN 3)."""
    assert isinstance(MyOrchestrator({}), Orchestrator)
    assert inspect.iscoroutinefunction(Orchestrator.execute)
    assert list(inspect.signature(Orchestrator.execute).parameters)[:6] == [
        "self",
        "prompt",
        "context",
        "providers",
        "tools",
        "hooks",
    ]


async def test_mount_at_session_by_name_runs_turn() -> None:
    provider, tool = MockProvider([("test_tool", {"x": 1}), "All done."]), MockTool("test_tool")
    providers, tools = {"provider-x": mounting(provider)}, {"tool-x": mounting(tool)}
    async with seed_session(loop=mount, providers=providers, tools=tools) as session:
        assert isinstance(session.coordinator.get("orchestrator"), MyOrchestrator)
        assert await session.execute("do it") == "All done."
    assert tool.calls == [{"x": 1}]
    provider.assert_exhausted()


async def run(
    turns: list[Any], hook: HookResult | None = None, config: dict[str, Any] | None = None
) -> tuple[MockTool, MockContextManager, EventRecorder]:
    """One turn of the document's loop, with one handler at tool:pre."""
    tool, context, recorder, hooks = (
        MockTool("bash", output="ok"),
        MockContextManager(),
        EventRecorder(),
        HookRegistry(),
    )
    recorder.listen(hooks)

    async def handler(event: str, data: dict[str, Any]) -> HookResult | None:
        return hook

    hooks.register("tool:pre", handler)
    with MockProvider(turns) as provider:
        await MyOrchestrator(config or {}).execute(
            prompt="go",
            context=context,
            providers={"mock": provider},
            tools={"bash": tool},
            hooks=hooks,
        )
    return tool, context, recorder


async def test_events_surround_model_and_tool() -> None:
    _, context, recorder = await run([("bash", {"command": "ls"}), "done"])
    assert recorder.names() == [
        "provider:request",
        "provider:response",
        "tool:pre",
        "tool:post",
        "provider:request",
        "provider:response",
    ]
    assert recorder.events[3][1]["tool_result"] == ToolResult(output="ok")
    assert [message["role"] for message in context.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert context.messages[2]["tool_call_id"] == "call_1"


async def test_denial_prevents_tool() -> None:
    tool, context, _ = await run(
        [("bash", {}), "done"], HookResult(action="deny", reason="no shell")
    )
    assert tool.call_count == 0
    assert context.messages[2]["content"] == "no shell"


async def test_modification_reaches_tool() -> None:
    """The result's action is ``modify`` and its data the whole payload (decided, DESIGN 5)."""
    changed = HookResult(
        action="modify", data={"tool_name": "bash", "tool_input": {"command": "ls -l"}}
    )
    tool, _, _ = await run([("bash", {"command": "ls"}), "done"], changed)
    assert tool.last_input == {"command": "ls -l"}


def test_result_has_no_is_error_field() -> None:
    """The document's ``ToolResult(is_error=True, …)``: unknown keywords are ignored, so it would pass for a success."""
    assert not hasattr(ToolResult(), "is_error")
    assert ToolResult(is_error=True, output="x").success is True  # type: ignore[call-arg]  # the document's mistake
