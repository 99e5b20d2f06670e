"""The approval hook: what it allows, denies and asks, and whom it asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import HookResult, PlanError
from amplifier.models import ApprovalResponse
from amplifier.modules.hooks import approval as hooks_approval
from amplifier.modules.hooks.approval import ApprovalOptions, _key, read_approval_options
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools import filesystem as tool_filesystem
from amplifier.modules.tools import search as tool_search
from amplifier.modules.tools import todo as tool_todo
from amplifier.testing import EventRecorder, MockTool, TestCoordinator


class Gate:
    """A mounted gate without a session, and what it emitted."""

    def __init__(self, coordinator: TestCoordinator, close: Any) -> None:
        self.coordinator = coordinator
        self.close = close
        self.recorder = EventRecorder()
        self.recorder.listen(coordinator.hooks)

    @classmethod
    async def open(cls, config: dict[str, Any] | None = None, **capabilities: Any) -> Gate:
        coordinator = TestCoordinator()
        for name, value in capabilities.items():
            coordinator.register_capability(name.replace("__", "."), value)
        return cls(coordinator, await hooks_approval.mount(coordinator, config))

    async def judge(self, tool: Any, **given: Any) -> HookResult:
        return await self.judge_input(tool, given)

    async def judge_input(self, tool: Any, given: Any) -> HookResult:
        data = {"tool_name": tool, "tool_call_id": "call-1", "tool_input": given}
        return await self.coordinator.hooks.emit("tool:pre", data)

    async def action(self, tool: str, **given: Any) -> str:
        return (await self.judge(tool, **given)).action

    def payloads(self, event: str) -> list[dict[str, Any]]:
        return [data for _, data in self.recorder.get_events(event)]


# ── defaults ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "tool", ["bash", "write_file", "edit_file", "web_fetch", "task", "mcp_delete", "Read_File"]
)
async def test_other_tools_are_asked_about(tool):
    gate = await Gate.open()
    result = await gate.judge(tool, x=1)
    assert result.action == "ask_user"
    assert result.approval_options == ["Allow once", "Allow always", "Deny"]
    assert (result.approval_timeout, result.approval_default) == (300.0, "deny")
    assert "no rule is about this call" in str(result.approval_prompt)


async def test_changing_built_in_tools_are_asked_about(tmp_path):
    gate = await Gate.open(session__working_dir=str(tmp_path))
    for module in (tool_filesystem, tool_search, tool_todo, tool_bash):
        await module.mount(gate.coordinator, {})
    actions = {name: await gate.action(name, x=1) for name in gate.coordinator.get("tools")}
    free = dict.fromkeys(["read_file", "list_directory", "glob", "grep", "todo"], "continue")
    assert actions == {
        **free,
        "write_file": "ask_user",
        "edit_file": "ask_user",
        "bash": "ask_user",
    }
    assert gate.payloads("approval:granted") == []


@pytest.mark.parametrize("command", ["pwd", "ls", "ls -la src", "echo hello", "echo 'a; b'"])
async def test_simple_commands_are_free(command):
    gate = await Gate.open()
    assert await gate.action("bash", command=command) == "continue"
    assert gate.payloads("approval:granted")[0]["tool_name"] == "bash"


async def test_tool_may_request_approval():
    gate = await Gate.open()
    tool: Any = MockTool("grep")
    tool.require_approval = True
    await gate.coordinator.mount("tools", tool)
    assert await gate.action("grep", pattern="x") == "ask_user"


async def test_malformed_calls_are_asked_about():
    """Other events pass."""
    gate = await Gate.open()
    calls: list[Any] = [
        (None, {}),
        ("", {}),
        (7, {}),
        ("read_file", None),
        ("read_file", [1]),
        ("bash", "ls"),
    ]
    for tool, value in calls:
        assert (await gate.judge_input(tool, value)).action == "ask_user"
    assert (
        await hooks_approval.ApprovalHook(_options(), gate.coordinator)("tool:post", {})
    ).action == "continue"


def _options() -> ApprovalOptions:
    return read_approval_options({})


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


async def test_strictest_rule_wins_in_any_order():
    rules = [
        {"command": "git *", "action": "allow"},
        {"command": "git push *", "action": "ask", "reason": "it leaves this machine"},
        {"command": "git push --force *", "action": "deny", "reason": "history stays"},
    ]
    for order in (rules, rules[::-1]):
        gate = await Gate.open({"rules": order})
        assert await gate.action("bash", command="git status") == "continue"
        asked = await gate.judge("bash", command="git push origin main")
        assert asked.action == "ask_user"
        assert "it leaves this machine" in str(asked.approval_prompt)
        denied = await gate.judge("bash", command="git push --force origin")
        assert (denied.action, denied.reason) == ("deny", "forbidden by the plan: history stays")


async def test_rules_on_paths_hosts_and_inputs():
    rules = [
        {"tool": ["write_file", "edit_file"], "path": "docs/**/*.md", "action": "allow"},
        {"tool": "*", "path": ".env", "action": "deny"},
        {"tool": "*", "path": "/etc/**", "action": "deny"},
        {"tool": "web_fetch", "host": "docs.python.org", "action": "allow"},
        {"tool": "web_fetch", "host": "*.example.org", "action": "allow"},
        {"tool": "web_fetch", "host": "evil.org", "action": "deny"},
        {"tool": "queue", "input": {"action": "peek", "count": 1}, "action": "allow"},
    ]
    gate = await Gate.open({"rules": rules}, session__working_dir="/srv/site")
    table: list[tuple[str, dict[str, Any], str]] = [
        ("write_file", {"file_path": "docs/a.md", "content": "x"}, "continue"),
        ("write_file", {"file_path": "docs/a/b/c.md", "content": "x"}, "continue"),
        ("write_file", {"file_path": "docs/a.py"}, "ask_user"),
        ("write_file", {"file_path": "docs/../src/a.md"}, "ask_user"),
        ("write_file", {"file_path": "./docs/a.md"}, "ask_user"),
        ("write_file", {"file_path": "/docs/a.md"}, "ask_user"),
        ("write_file", {"file_path": "docs//a.md"}, "ask_user"),
        ("write_file", {"file_path": "docs/a\n.md"}, "ask_user"),
        ("write_file", {"file_path": "docs/a.md", "path": "src/b.py"}, "ask_user"),
        ("write_file", {"file_path": ["docs/a.md"]}, "ask_user"),
        ("write_file", {}, "ask_user"),
        ("read_file", {"file_path": ".env"}, "deny"),
        ("read_file", {"file_path": "deep/down/.ENV"}, "deny"),
        ("read_file", {"file_path": "a/../.env"}, "deny"),
        ("read_file", {"file_path": "../../etc/passwd"}, "deny"),
        ("read_file", {"file_path": "/etc/./shadow"}, "deny"),
        ("read_file", {"file_path": "env"}, "continue"),
        ("web_fetch", {"url": "https://docs.python.org/3/"}, "continue"),
        ("web_fetch", {"url": "https://DOCS.python.org:443/3/"}, "continue"),
        ("web_fetch", {"url": "https://a.b.example.org/"}, "continue"),
        ("web_fetch", {"url": "https://example.org/"}, "ask_user"),
        ("web_fetch", {"url": "https://docs.python.org.other.net/"}, "ask_user"),
        ("web_fetch", {"url": "https://docs.python.org@other.net/"}, "ask_user"),
        ("web_fetch", {"url": "https://other.net/docs.python.org"}, "ask_user"),
        ("web_fetch", {"url": "https://me:word@docs.python.org/"}, "ask_user"),
        ("web_fetch", {"url": "https://other.net\\@docs.python.org/"}, "ask_user"),
        ("web_fetch", {"url": "file://docs.python.org/etc/passwd"}, "ask_user"),
        ("web_fetch", {"url": "https://docs.python.org\t/"}, "ask_user"),
        ("web_fetch", {"url": "https://[docs.python.org/"}, "ask_user"),
        ("web_fetch", {"url": "https://x/?to=https://EVIL.org"}, "deny"),
        ("queue", {"action": "peek", "count": 1}, "continue"),
        ("queue", {"action": "peek", "count": True}, "ask_user"),
        ("queue", {"action": "drop", "count": 1}, "ask_user"),
        ("queue", {"action": "peek"}, "ask_user"),
    ]
    for tool, value, expected in table:
        assert await gate.action(tool, **value) == expected, (tool, value)


async def test_command_rule_covers_pure_commands_only():
    """A call whose input holds more than a command is not allowed."""
    gate = await Gate.open({"rules": [{"command": "git status", "action": "allow"}]})
    assert (
        await gate.action("bash", command="git status", timeout=5, description="look") == "continue"
    )
    for extra in ({"env": {"LD_PRELOAD": "x"}}, {"cwd": "/"}, {"shell": "/bin/x"}, {"stdin": "y"}):
        assert await gate.action("bash", command="git status", **extra) == "ask_user"


async def test_plan_sets_action_of_tool():
    tools = {
        "bash": "deny",
        "write_file": {"require_approval": False},
        "grep": {"require_approval": True},
    }
    gate = await Gate.open({"tools": tools, "unknown_tools": "deny"})
    assert await gate.action("bash", command="ls") == "deny"
    assert await gate.action("write_file", file_path="x") == "continue"
    assert await gate.action("grep", pattern="x") == "ask_user"
    assert await gate.action("other") == "deny"
    assert await gate.action("read_file", file_path="x") == "continue"


async def test_published_rule_format_is_understood():
    rules = [
        {"pattern": "ls *", "action": "auto_approve", "description": "safe"},
        {"pattern": "rm -rf /*", "action": "auto_deny"},
    ]
    gate = await Gate.open({"rules": rules, "default_action": "continue", "default_timeout": 5})
    assert await gate.action("bash", command="ls src") == "continue"
    assert await gate.action("bash", command="rm -rf /usr") == "deny"
    asked = await gate.judge("bash", command="pwd")
    assert asked.action == "ask_user", "own rules take the place of the default ones"
    assert (asked.approval_timeout, asked.approval_default) == (5, "allow")


@pytest.mark.parametrize("key", ["timeout", "default_timeout"])
async def test_null_timeout_is_default(key):
    gate = await Gate.open({key: None})
    assert (await gate.judge("bash", command="make")).approval_timeout == 300


@pytest.mark.parametrize(
    ("given", "said"), [({}, "d"), ({"reason": None}, "d"), ({"reason": "r"}, "r")]
)
async def test_rule_reason_precedes_description(given, said):
    rule = {"action": "deny", "tool": "a", "description": "d", **given}
    gate = await Gate.open({"rules": [rule]})
    assert (await gate.judge("a")).reason.endswith(said)


async def test_policy_module_can_require_approval():
    gate = await Gate.open(
        {"policy_driven_only": True}, approval__needs_check=lambda tool: tool == "read_file"
    )
    assert await gate.action("read_file", file_path="x") == "ask_user"
    assert await gate.action("bash", command="rm -rf x") == "continue"
    gate.coordinator.session_state["require_approval_tools"] = {"bash"}
    assert await gate.action("bash", command="rm -rf x") == "ask_user"


async def test_failing_policy_means_question():
    def broken(tool: str) -> bool:
        raise RuntimeError("down")

    gate = await Gate.open(approval__needs_check=broken)
    assert await gate.action("read_file", file_path="x") == "ask_user"


async def test_decisions_of_rules_are_emitted():
    rules = [{"tool": "a", "action": "allow"}, {"tool": "b", "action": "deny"}]
    gate = await Gate.open({"rules": rules})
    await gate.judge("a")
    await gate.judge("b")
    granted, denied = gate.payloads("approval:granted")[0], gate.payloads("approval:denied")[0]
    assert (granted["hook_name"], granted["event"], granted["tool_call_id"]) == (
        "hooks-approval",
        "tool:pre",
        "call-1",
    )
    assert denied["reason"] == "forbidden by the plan: rule for tool b"


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


async def test_configuration_problems_are_reported_together():
    config: dict[str, Any] = {
        "timeout": -1,
        "tools": {"bash": "maybe", "x": {"require_approval": "yes"}},
        "unknown_tools": "shrug",
        "rules": [
            "ls",
            {"action": "permit", "tool": "a"},
            {"action": "allow"},
            {"action": "allow", "command": "ls*"},
            {"action": "allow", "command": 5, "tool": "bash"},
            {"action": "allow", "tool": "a", "pth": "x", "path": "", "input": []},
            {"action": "allow", "command": "ls", "pattern": "ls"},
        ],
    }
    with pytest.raises(PlanError) as caught:
        await Gate.open(config)
    paths = {path for path, _ in caught.value.problems}
    assert paths == {
        *("$.timeout", "$.tools.bash", "$.tools.x", "$.unknown_tools"),
        *(
            "$.rules[0]",
            "$.rules[1].action",
            "$.rules[2].tool",
            "$.rules[3].command",
            "$.rules[4].command",
        ),
        *("$.rules[5].pth", "$.rules[5].path", "$.rules[5].input", "$.rules[6].pattern"),
    }


@pytest.mark.parametrize(
    "rule",
    [
        {
            "command": "git status *",
            "action": "allow",
            "match": ["git status -s"],
            "not_match": ["git push", "git status; rm a"],
        },
        {
            "command": "rm *",
            "action": "deny",
            "match": ["ls && rm -rf /", "sudo rm a"],
            "not_match": ["ls"],
        },
        {
            "tool": "write_file",
            "path": "docs/**",
            "action": "allow",
            "match": [{"file_path": "docs/a/b.md"}],
        },
        {
            "tool": "mcp_*",
            "module": "tool-mcp",
            "read_only": True,
            "action": "allow",
            "match": [{}],
        },
        {
            "tool": "bash",
            "sandboxed": True,
            "input": {"timeout": 5},
            "action": "ask",
            "not_match": ["ls"],
        },
    ],
)
async def test_rule_fitting_its_examples_is_accepted(rule):
    (read,) = read_approval_options({"rules": [rule]}).rules or ()
    assert read.action == rule["action"]


async def test_rule_contradicting_example_is_refused():
    rules = [
        {
            "command": "git *",
            "action": "allow",
            "match": ["git log", "git log | head"],
            "not_match": ["git push", "ls"],
        },
        {
            "command": "rm *",
            "action": "deny",
            "match": ["unlink a"],
            "not_match": ["echo rm", "bash -c 'rm a'"],
        },
        {
            "tool": "write_file",
            "path": "docs/**",
            "action": "allow",
            "match": [{"file_path": "docs/../a"}, 5],
        },
    ]
    with pytest.raises(PlanError) as caught:
        await Gate.open({"rules": rules})
    problems = dict(caught.value.problems)
    assert set(problems) == {
        *(
            "$.rules[0].match[1]",
            "$.rules[0].not_match[0]",
            "$.rules[1].match[0]",
            "$.rules[1].not_match[1]",
        ),
        "$.rules[2].match[1]",  # a wrong value is reported before what the values mean
    }
    assert (
        "'|' may make it more than one simple command, and no rule allows that"
        in problems["$.rules[0].match[1]"]
    )
    assert (
        problems["$.rules[0].not_match[0]"]
        == "the rule applies to 'git push'; change the rule or the example"
    )


# ── the contract ─────────────────────────────────────────────────────────────────────────────────


async def test_failing_gate_denies(monkeypatch):
    gate = await Gate.open()

    def broken(*_args: Any) -> Any:
        raise RuntimeError("no tools today")

    monkeypatch.setattr(gate.coordinator, "get", broken)
    assert await gate.action("read_file", file_path="x") == "deny"


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


async def test_always_needs_memory():
    gate = await Gate.open({"remember": False})
    assert (await gate.judge("deploy")).approval_options == ["Allow", "Deny"]


# ── a registered provider, as published applications bring ───────────────────────────────────────


class Provider:
    def __init__(self, *answers: Any, delay: float = 0.0) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self._delay = delay

    async def request_approval(self, request: Any) -> Any:
        self.requests.append(request)
        await anyio.sleep(self._delay)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def with_provider(provider: Provider, **config: Any) -> Gate:
    gate = await Gate.open(config)
    gate.coordinator.get_capability("approval.register_provider")(provider)
    return gate


async def test_registered_provider_gets_whole_request():
    provider = Provider(
        ApprovalResponse(approved=True), ApprovalResponse(approved=False, reason="too late")
    )
    gate = await with_provider(provider)
    assert await gate.action("bash", command="make") == "continue"
    request = provider.requests[0]
    assert (request.tool_name, request.details, request.risk_level) == (
        "bash",
        {"command": "make"},
        "high",
    )
    denied = await gate.judge("deploy", n=1)
    assert (denied.action, denied.reason) == ("deny", "too late")
    assert [name for name, _ in gate.recorder.events if name.startswith("approval")] == [
        *("approval:required", "approval:granted"),
        *("approval:required", "approval:denied"),
    ]


async def test_remembered_answer_covers_same_call_only():
    yes, no = (
        ApprovalResponse(approved=True, remember=True),
        ApprovalResponse(approved=False, remember=True),
    )
    provider = Provider(yes, no)
    gate = await with_provider(provider)
    assert await gate.action("bash", command="make") == "continue"
    assert await gate.action("bash", command="make") == "continue"
    assert await gate.action("bash", command="make all") == "deny"
    assert await gate.action("bash", command="make all") == "deny"
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        *(None, "yes", {"approved": True}, RuntimeError("gone"), TimeoutError()),
        *(
            ApprovalResponse(approved=False),
            SimpleNamespace(approved="no"),
            SimpleNamespace(approved=1),
        ),
    ],
    ids=repr,
)
async def test_only_approving_response_allows(answer):
    gate = await with_provider(Provider(answer))
    assert await gate.action("bash", command="make") == "deny"


@pytest.mark.virtual_time
async def test_silent_provider_is_abandoned():
    gate = await with_provider(Provider(ApprovalResponse(approved=True), delay=1000), timeout=400)
    began = anyio.current_time()
    denied = await gate.judge("bash", command="make")
    assert denied.action == "deny"
    assert "no answer within 400 s" in str(denied.reason)
    assert anyio.current_time() - began == pytest.approx(400, abs=1)


@given(first=st.text(), second=st.text())
def test_calls_never_share_remembered_answer(first, second):
    assert (_key("bash", {"command": first}) == _key("bash", {"command": second})) == (
        first == second
    )


# ── tools that state that they change nothing ────────────────────────────────────────────────────


_ALLOW = {"tool": "remote_*", "read_only": True, "action": "allow"}
_DENY_OTHERS = {"tool": "remote_*", "read_only": False, "action": "deny"}


@pytest.mark.parametrize(
    ("rules", "annotations", "expected"),
    [
        ([], {"readOnlyHint": True}, "ask_user"),  # a statement allows nothing by itself
        ([_ALLOW], {"readOnlyHint": True}, "continue"),
        ([_ALLOW], {"readOnlyHint": "yes"}, "ask_user"),
        (
            [_ALLOW, {"tool": "*", "action": "deny"}],
            {"readOnlyHint": True},
            "deny",
        ),  # and lifts no rule of the plan
        ([_ALLOW, {"tool": "remote_get", "action": "ask"}], {"readOnlyHint": True}, "ask_user"),
        ([_DENY_OTHERS], {}, "deny"),
        ([_DENY_OTHERS], {"readOnlyHint": True}, "ask_user"),
    ],
)
async def test_tool_annotations_matter_to_their_rules_only(rules, annotations, expected):
    gate = await Gate.open({"rules": rules} if rules else None)
    tool: Any = MockTool("remote_get")
    tool.annotations = annotations
    await gate.coordinator.mount("tools", tool, name="remote_get")
    assert await gate.action("remote_get") == expected
