"""Coordinator API, third part: `process_hook_result` and where each part of a result goes."""

# ruff: noqa: G004 - the snippets as the document writes them

from __future__ import annotations

import logging
from typing import Any

import pytest

from amplifier import HookResult, ToolResult
from amplifier.testing import (
    EventRecorder,
    MockApprovalSystem,
    MockContextManager,
    MockProvider,
    MockTool,
    TestCoordinator,
)

logger = logging.getLogger("seeds")


def coordinator_with(
    *, size_limit: int | None = None, budget: int | None = None, **arguments: Any
) -> TestCoordinator:
    session: dict[str, Any] = {"orchestrator": "loop-x", "context": "context-x"}
    if size_limit is not None:
        session["injection_size_limit"] = size_limit
    if budget is not None:
        session["injection_budget_per_turn"] = budget
    return TestCoordinator(config={"session": session}, **arguments)


def answering(result: HookResult) -> Any:
    async def handler(event: str, data: dict[str, Any]) -> HookResult:
        return result

    return handler


# ── the two pipelines ──


async def test_processed_denial_is_raised_by_orchestrator() -> None:
    coordinator, tool_data = coordinator_with(), {"tool_name": "bash"}
    coordinator.hooks.register(
        "tool:pre", answering(HookResult(action="deny", reason="not allowed here"))
    )

    hook_result = await coordinator.hooks.emit("tool:pre", tool_data)
    processed = await coordinator.process_hook_result(
        result=hook_result,
        event="tool:pre",
        hook_name="security-validator",
    )

    with pytest.raises(PermissionError, match="not allowed here"):  # noqa: PT012 - the snippet decides and raises
        if processed.action == "deny":
            raise PermissionError(processed.reason)


@pytest.mark.parametrize("answer", ["Allow", "Deny"])
async def test_pipeline_skips_continue(answer: str) -> None:
    coordinator = coordinator_with(approval_system=MockApprovalSystem([answer]))
    coordinator.hooks.register(
        "tool:pre", answering(HookResult(action="ask_user", approval_prompt="Run bash?"))
    )
    tool_data = {"tool_name": "bash"}

    async def run() -> str:
        result = await coordinator.hooks.emit("tool:pre", tool_data)

        if result.action != "continue":
            processed = await coordinator.process_hook_result(
                result=result,
                event="tool:pre",
                hook_name="security",
            )

            if processed.action == "deny":
                raise PermissionError(processed.reason)
        return "ran"

    if answer == "Allow":
        assert await run() == "ran"
    else:
        with pytest.raises(PermissionError, match="User denied: Run bash"):
            await run()


# ── context injection ──


async def test_injection_over_budget_warns_and_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator, context = coordinator_with(budget=2), MockContextManager()
    await coordinator.mount("context", context)
    assert coordinator.injection_budget_per_turn == 2
    result = HookResult(action="inject_context", context_injection="x" * 12)

    with caplog.at_level(logging.WARNING, logger="amplifier"):
        await coordinator.process_hook_result(result, "tool:post", "linter")
    tokens = len("x" * 12) // 4
    assert coordinator._current_turn_injections == tokens
    assert len(context.messages) == 1
    assert "budget" in caplog.text


# ── approval ──


async def test_request_without_approval_system_fails() -> None:
    coordinator = coordinator_with()
    coordinator.approval_system = None
    processed = await coordinator.process_hook_result(HookResult(action="ask_user"), "tool:pre")
    assert processed.action == "deny"


# ── ephemeral injections ──


@pytest.mark.parametrize("append", [True, False])
async def test_ephemeral_injection_is_for_current_call(append: bool) -> None:
    """The document's ``provider.complete(messages)`` passes plain messages; the double takes them, a provider takes a
    ChatRequest.
    """
    coordinator, provider = coordinator_with(), MockProvider()
    context = MockContextManager([{"role": "tool", "tool_call_id": "call_1", "content": "done"}])
    await coordinator.mount("context", context)
    hook_result = HookResult(
        action="inject_context",
        context_injection="remember the limit",
        ephemeral=True,
        append_to_last_tool_result=append,
    )

    messages = await context.get_messages()

    result = await coordinator.process_hook_result(hook_result, "tool:post", "reminder")

    if result.action == "inject_context" and result.ephemeral:
        ephemeral_message = {
            "role": result.context_injection_role,
            "content": result.context_injection,
        }

        if result.append_to_last_tool_result and messages[-1].get("role") == "tool":
            messages[-1]["content"] += "\n\n" + str(result.context_injection)
        else:
            messages.append(ephemeral_message)

        await provider.complete(messages)  # type: ignore[arg-type]  # as the document has it

    if append:
        assert [message["content"] for message in provider.last_request] == [
            "done\n\nremember the limit"
        ]
    else:
        assert [message["content"] for message in provider.last_request] == [
            "done",
            "remember the limit",
        ]
    assert context.messages == [{"role": "tool", "tool_call_id": "call_1", "content": "done"}]


# ── the orchestrator's pattern ──


async def execute_with_hooks(
    coordinator: Any, tool: Any, tool_name: str, tool_input: dict[str, Any]
) -> Any:
    """The document's example of an orchestrator; its free name ``tool`` is a parameter here."""
    pre_result = await coordinator.hooks.emit(
        "tool:pre",
        {
            "tool_name": tool_name,
            "tool_input": tool_input,
        },
    )

    processed = await coordinator.process_hook_result(
        result=pre_result,
        event="tool:pre",
        hook_name="security",
    )

    if processed.action == "deny":
        logger.warning(f"Tool {tool_name} blocked: {processed.reason}")
        raise PermissionError(processed.reason)

    if processed.action == "modify":
        tool_input = processed.data.get("tool_input", tool_input)

    result = await tool.execute(tool_input)

    post_result = await coordinator.hooks.emit(
        "tool:post",
        {
            "tool_name": tool_name,
            "tool_input": tool_input,
            "tool_result": result,
        },
    )

    await coordinator.process_hook_result(
        result=post_result,
        event="tool:post",
        hook_name="linter",
    )

    return result


async def test_orchestrator_pattern_runs_tool_between_hooks() -> None:
    coordinator, tool, recorder = coordinator_with(), MockTool("bash", output="ok"), EventRecorder()
    recorder.listen(coordinator.hooks)
    result = await execute_with_hooks(coordinator, tool, "bash", {"command": "ls"})
    assert result == ToolResult(output="ok")
    assert tool.last_input == {"command": "ls"}
    assert recorder.names() == ["tool:pre", "tool:post"]
    assert recorder.events[1][1]["tool_result"] == result


async def test_orchestrator_pattern_honours_denial(caplog: pytest.LogCaptureFixture) -> None:
    coordinator, tool = coordinator_with(), MockTool("bash")
    coordinator.hooks.register("tool:pre", answering(HookResult(action="deny", reason="dangerous")))
    with (
        caplog.at_level(logging.WARNING, logger="seeds"),
        pytest.raises(PermissionError, match="dangerous"),
    ):
        await execute_with_hooks(coordinator, tool, "bash", {"command": "rm"})
    assert caplog.messages == ["Tool bash blocked: dangerous"]
    assert tool.call_count == 0


async def test_orchestrator_pattern_honours_modification() -> None:
    """A modification comes back as action ``modify`` (decided, DESIGN 5; the published kernel returns ``continue``)."""
    coordinator, tool = coordinator_with(), MockTool("bash")

    async def quote(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {"command": "ls -- safe"}})

    coordinator.hooks.register("tool:pre", quote)
    await execute_with_hooks(coordinator, tool, "bash", {"command": "ls"})
    assert tool.last_input == {"command": "ls -- safe"}


async def test_orchestrator_pattern_stores_post_injection() -> None:
    coordinator, tool, context = coordinator_with(), MockTool("bash"), MockContextManager()
    await coordinator.mount("context", context)
    feedback = HookResult(action="inject_context", context_injection="2 warnings")
    coordinator.hooks.register("tool:post", answering(feedback), name="linter")
    await execute_with_hooks(coordinator, tool, "bash", {"command": "ls"})
    [message] = context.messages
    assert message["content"] == "2 warnings"
    assert message["metadata"]["hook_name"] == "linter"
