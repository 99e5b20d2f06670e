"""The names of a server's tools: none that another module has, and no rule about another module's tool allows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amplifier.contracts import Coordinator
from amplifier.errors import PlanError
from amplifier.modules.hooks import approval as hooks_approval
from amplifier.modules.tools.mcp._options import read_mcp_options
from amplifier.testing import MockApprovalSystem, MockTool, wait_for
from tests.modules.tools.mcp.desk import answer, opened, small

ANY: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = json.dumps([{"name": "bash", "inputSchema": ANY}, {"name": "read_file", "inputSchema": ANY}])
OTHER_BASH = json.dumps([{"name": "bash", "inputSchema": ANY, "description": "Another one."}])


def unprefixed(*options: str) -> dict[str, Any]:
    return small(*options, prefix="", allow_unprefixed_names=True)


@pytest.mark.parametrize("prefix", ["", " "])
def test_empty_prefix_needs_explicit_consent(prefix):
    with pytest.raises(PlanError, match="accept that with allow_unprefixed_names: true") as caught:
        read_mcp_options({"servers": {"x": {"command": "a", "prefix": prefix}}})
    assert [path for path, _ in caught.value.problems] == ["$.servers.x.prefix"]
    (server,) = read_mcp_options(
        {"servers": {"x": {"command": "a", "prefix": prefix, "allow_unprefixed_names": True}}}
    ).servers
    assert server.tool_prefix == prefix


@pytest.mark.parametrize("is_first", [True, False])
async def test_server_never_has_name_of_other_tool(is_first, caplog):
    """Whichever of the two the plan mounts first, and also when the server changes its list later."""
    others = {"tool-own": _mounting(MockTool("bash"))}
    server = {
        "module": "tool-mcp",
        "config": {
            "servers": {"s": unprefixed("--all", f"--tools={BASH}", f"--more-tools={OTHER_BASH}")}
        },
    }
    order = [server, "tool-own"] if is_first else ["tool-own", server]
    async with opened({}, tools=others, plan={"tools": order}) as desk:
        held = desk.tools["bash"]
        assert isinstance(held, MockTool)
        await desk.call("more_tools")
        assert await wait_for(lambda: bool(desk.events("mcp:tools_changed")), timeout=60)
        assert desk.tools["bash"] is held
        assert "lower" in desk.tools
        assert desk.session.coordinator.owner_of("tools", "bash") == "tool-own"
        assert desk.session.coordinator.owner_of("tools", "read_file") == "tool-mcp"
    assert (
        "a tool is not mounted, because module 'tool-own' already has a tool with the name 'bash'"
        in caplog.text
    )


RULES: list[dict[str, Any]] = [
    {},
    {"rules": [{"tool": "bash", "action": "allow"}, {"tool": ["read_*", "*"], "action": "allow"}]},
    {"rules": [{"tool": "bash", "action": "allow", "module": "tool-bash"}]},
    {"rules": [{"command": "pwd", "action": "allow"}], "use_default_rules": True},
    {"tools": {"bash": "allow", "read_file": "allow"}},
    {"rules": [{"tool": "bash", "action": "allow", "sandboxed": True}]},
]


@pytest.mark.parametrize("config", RULES)
async def test_built_in_rule_allows_no_namesake(config):
    asked = MockApprovalSystem()
    server = {"module": "tool-mcp", "config": {"servers": {"s": unprefixed(f"--tools={BASH}")}}}
    async with opened(
        {},
        model=[
            answer("", ("bash", {"command": "pwd"})),
            answer("", ("read_file", {"command": "x"})),
            answer("done"),
        ],
        approval=asked,
        tools={"tool-sandboxed": _with_capability, "hooks-approval": hooks_approval},
        plan={
            "tools": [server, "tool-sandboxed"],
            "hooks": [{"module": "hooks-approval", "config": config}, "hooks-watch"],
        },
    ) as desk:
        await desk.session.execute("go")
    assert [request["prompt"].splitlines()[0] for request in asked.requests] == [
        "Allow the tool bash of module tool-mcp to run?",
        "Allow the tool read_file of module tool-mcp to run?",
    ]


async def test_rule_may_name_module_of_tools():
    rules = [
        {"tool": "*", "module": "tool-mcp", "action": "allow"},
        {"tool": "*", "module": "tool-own", "action": "deny"},
    ]
    server = {"module": "tool-mcp", "config": {"servers": {"s": unprefixed(f"--tools={BASH}")}}}
    asked = MockApprovalSystem([])
    own = MockTool("own")
    async with opened(
        {},
        model=[answer("", ("bash", {"command": "pwd"})), answer("", ("own", {})), answer("done")],
        approval=asked,
        tools={"tool-own": _mounting(own), "hooks-approval": hooks_approval},
        plan={
            "tools": [server, "tool-own"],
            "hooks": [{"module": "hooks-approval", "config": {"rules": rules}}, "hooks-watch"],
        },
    ) as desk:
        await desk.session.execute("go")
        assert [data["tool_name"] for data in desk.events("approval:granted")] == ["bash"]
        assert [data["tool_name"] for data in desk.events("approval:denied")] == ["own"]
    assert own.calls == []


async def _with_capability(coordinator: Coordinator, config: Any) -> None:
    coordinator.register_capability("bash.sandbox", {"kind": "bwrap", "network": False})


def _mounting(tool: Any) -> Any:
    async def mount(coordinator: Coordinator, config: Any) -> None:
        await coordinator.mount("tools", tool)

    return mount
