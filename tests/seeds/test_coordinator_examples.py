"""Coordinator API, last part: the capability system and the examples."""

# ruff: noqa: G004, RET504 - the snippets as the document writes them

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from amplifier import AmplifierSession, HookResult
from amplifier.testing import MockTool, TestCoordinator, create_test_coordinator
from tests.seeds.seed_sessions import seed_session

logger = logging.getLogger("seeds")


class MyTool:
    """The tool of the examples."""

    def __init__(self, setting: str = "default") -> None:
        self.setting = setting
        self.is_open = True

    async def execute(self, input: dict[str, Any]) -> str:  # noqa: A002 - the contract's name
        return f"executed {input['param']}"

    def validate(self) -> bool:
        return True

    def get_config(self) -> dict[str, str]:
        return {"setting": self.setting}

    async def shutdown(self) -> None:
        self.is_open = False


# ── capability system ──


async def mount_capability_provider(coordinator, config):
    tool = MyTool()

    coordinator.register_capability("my-tool.execute", tool.execute)
    coordinator.register_capability("my-tool.validate", tool.validate)
    coordinator.register_capability("my-tool.config", tool.get_config)


@pytest.mark.parametrize("is_available", [True, False])
async def test_modules_share_capabilities(
    is_available: bool, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[str] = []

    async def mount_consumer(coordinator, config):
        execute_fn = coordinator.get_capability("my-tool.execute")

        if execute_fn:
            result = await execute_fn({"param": "value"})
            results.append(result)
        else:
            logger.info("my-tool not available, using fallback")

    tools = {"tool-provider": mount_capability_provider} if is_available else {}
    with caplog.at_level(logging.INFO, logger="seeds"):
        async with seed_session(tools=tools, hooks={"hooks-consumer": mount_consumer}) as session:
            assert session.failures == []
    assert results == (["executed value"] if is_available else [])
    assert caplog.messages == ([] if is_available else ["my-tool not available, using fallback"])


async def test_capabilities_are_discovered_through_channel(
    coordinator: TestCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = MyTool()

    def contribute_capabilities():
        return {
            "my-tool.execute": tool.execute,
            "my-tool.validate": tool.validate,
        }

    coordinator.register_contributor(
        channel="capabilities",
        name="my-tool",
        callback=contribute_capabilities,
    )

    all_capabilities = await coordinator.collect_contributions("capabilities")
    merged = {}
    for cap_dict in all_capabilities:
        if isinstance(cap_dict, dict):
            merged.update(cap_dict)

    for name, _capability in merged.items():
        print(f"Available: {name}")
    assert capsys.readouterr().out == "Available: my-tool.execute\nAvailable: my-tool.validate\n"


# ── examples ──


async def mount_tool_logger(coordinator, config):
    """The document's hook module that works with other modules; its ``datetime.now()`` is aware here."""
    context = coordinator.get("context")
    all_tools = coordinator.get("tools")
    bash_tool = coordinator.get("tools", "bash")
    assert all_tools.get("bash") is bash_tool

    if context is None:
        raise RuntimeError("Context manager required")

    async def tool_logger(event: str, data: dict) -> HookResult:
        tool_name = data.get("tool_name")

        logger.info(f"Tool {tool_name} executing")

        if tool_name == "bash":
            await context.add_message(
                {
                    "role": "system",
                    "content": f"Bash command logged at {datetime.now(UTC)}",
                }
            )

        return HookResult(action="continue")

    coordinator.hooks.register("tool:pre", tool_logger, priority=10)


async def test_hook_reaches_context_and_tools(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = create_test_coordinator()
    await coordinator.mount("tools", MockTool("bash"))
    await mount_tool_logger(coordinator, {})
    with caplog.at_level(logging.INFO, logger="seeds"):
        await coordinator.hooks.emit("tool:pre", {"tool_name": "echo"})
        assert (
            await coordinator.hooks.emit("tool:pre", {"tool_name": "bash"})
        ).action == "continue"
    assert caplog.messages == ["Tool echo executing", "Tool bash executing"]
    [message] = coordinator.get("context").messages
    assert message["content"].startswith("Bash command logged at ")


async def test_hook_without_context_reports_it() -> None:
    with pytest.raises(RuntimeError, match="Context manager required"):
        await mount_tool_logger(TestCoordinator(), {})


async def test_agent_capabilities_spawn_children(
    seed_plan: dict[str, Any],
) -> None:
    async def mount(coordinator, config):
        agent_configs = config.get("agents", {})

        async def list_agents() -> list[str]:
            return list(agent_configs.keys())

        async def get_agent_config(agent_id: str) -> dict:
            return agent_configs.get(agent_id, {})

        async def spawn_agent(agent_id: str, task: str) -> str:
            agent_config = agent_configs.get(agent_id)
            if not agent_config:
                raise ValueError(f"Unknown agent: {agent_id}")

            child_config = coordinator.session._merge_configs(
                coordinator.config,
                agent_config,
            )
            child_config[
                "tools"
            ] = []  # our agent system itself is in process and the child's loader is its own

            child = AmplifierSession(
                config=child_config,
                parent_id=coordinator.session_id,
            )

            async with child as session:
                result = await session.execute(task)
                return result

        coordinator.register_capability("agents.list", list_agents)
        coordinator.register_capability("agents.get", get_agent_config)
        coordinator.register_capability("agents.spawn", spawn_agent)

        logger.info("Agent capabilities registered")

    agents = {"researcher": {"session": {"metadata": {"role": "researcher"}}}}
    seed_plan["tools"] = [{"module": "tool-agents", "config": {"agents": agents}}]
    session = AmplifierSession(seed_plan, session_id="the-parent")
    session.loader.register("tool-agents", mount)
    async with session:
        get_capability = session.coordinator.get_capability
        assert await get_capability("agents.list")() == ["researcher"]
        assert await get_capability("agents.get")("researcher") == agents["researcher"]
        answer = await get_capability("agents.spawn")("researcher", "find it")
        with pytest.raises(ValueError, match="Unknown agent: stranger"):
            await get_capability("agents.spawn")("stranger", "find it")
    assert answer.startswith("find it, by ")
    assert answer.endswith(" under the-parent")


async def test_task_is_delegated_to_child_session(
    seed_plan: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    children: list[AmplifierSession] = []

    async def delegate_task(coordinator, task: str, agent_config: dict) -> str:
        parent = coordinator.session

        child_config = parent._merge_configs(parent.config, agent_config)

        child = AmplifierSession(
            config=child_config,
            session_id=None,
            parent_id=coordinator.session_id,
        )
        children.append(child)

        async with child as session:
            logger.info(f"Child session {session.session_id} spawned from {coordinator.session_id}")
            result = await session.execute(task)
            return result

    async with AmplifierSession(seed_plan) as session:
        with caplog.at_level(logging.INFO, logger="seeds"):
            answer = await delegate_task(
                session.coordinator, "summarize", {"session": {"metadata": {"a": 1}}}
            )
        parent_context = session.coordinator.get("context")
        assert await parent_context.get_messages() == []
    [child] = children
    assert child.session_id != session.session_id
    assert child.config["session"]["metadata"] == {"a": 1}
    assert "metadata" not in seed_plan["session"]
    assert answer == f"summarize, by {child.session_id} under {session.session_id}"
    assert caplog.messages == [
        f"Child session {child.session_id} spawned from {session.session_id}"
    ]
    assert not child.initialized
