"""The three built-in hooks in one session: who runs before whom, and what each sees of the others' work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier import AmplifierSession, HookResult, ModuleLoader
from amplifier.modules.context import simple as context_simple
from amplifier.modules.hooks import approval as hooks_approval
from amplifier.modules.hooks import logging as hooks_logging
from amplifier.modules.hooks import redaction as hooks_redaction
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.loop import events as loop_events
from amplifier.modules.loop import streaming as loop_streaming
from amplifier.testing import EventRecorder, MockApprovalSystem, MockProvider, MockTool

LOOPS = {"loop-basic": loop_basic, "loop-events": loop_events, "loop-streaming": loop_streaming}
HOOKS = {
    "hooks-approval": hooks_approval,
    "hooks-logging": hooks_logging,
    "hooks-redaction": hooks_redaction,
}
KEY = "sk-ant-api03-" + "aB3dE5fG7h" * 4


class Watched:
    """A session with built-in hooks around a scripted model, and what came of it."""

    def __init__(
        self,
        turns: list[Any],
        *tools: Any,
        hooks: dict[str, dict[str, Any]],
        loop: str = "loop-streaming",
        approval: Any = None,
        extra: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> None:
        self.provider = MockProvider(turns)
        self.recorder = EventRecorder()
        self._tools = tools
        self._extra = extra or {}
        self.plan = {
            "session": {
                "orchestrator": {"module": loop, "config": {"initial_delay": 0}},
                "context": {"module": "context-simple"},
            },
            "providers": [{"module": "provider-mock"}],
            "tools": [{"module": "tool-mock"}],
            "hooks": [{"module": name, "config": config} for name, config in hooks.items()]
            + [{"module": "hooks-test"}],
        }
        modules: dict[str, Any] = {
            **HOOKS,
            loop: LOOPS[loop],
            "context-simple": context_simple,
            "provider-mock": self._mount_provider,
            "tool-mock": self._mount_tools,
            "hooks-test": self._mount_hooks,
        }
        self.session = AmplifierSession(
            self.plan,
            loader=ModuleLoader(modules=modules),
            approval_system=approval,
            session_id=session_id,
        )

    async def _mount_provider(self, coordinator: Any, config: Any) -> Any:
        return self.provider

    async def _mount_tools(self, coordinator: Any, config: Any) -> None:
        for tool in self._tools:
            await coordinator.mount("tools", tool)

    async def _mount_hooks(self, coordinator: Any, config: Any) -> None:
        coordinator.hooks.register("*", self.recorder, priority=1000, name="recorder")
        coordinator.register_contributor(
            "observability.events", "hooks-test", lambda: ["test:custom"]
        )
        for event, (handler, priority) in self._extra.items():
            coordinator.hooks.register(event, handler, priority=priority, name=f"test-{event}")

    async def run(self, prompt: str = "hello") -> str:
        async with self.session as session:
            return await session.execute(prompt)

    def data(self, event: str) -> list[dict[str, Any]]:
        return [data for _, data in self.recorder.get_events(event)]


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log; every line has to be whole."""
    text = path.read_bytes()
    assert not text or text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


def all_three(path: Path, **approval: Any) -> dict[str, dict[str, Any]]:
    return {"hooks-approval": approval, "hooks-logging": {"path": str(path)}, "hooks-redaction": {}}


@pytest.mark.parametrize("loop", ["loop-streaming", "loop-events"])
async def test_redaction_precedes_approval_and_log(tmp_path, loop):
    watched = Watched(["done"], hooks=all_three(tmp_path / "e.jsonl"), loop=loop)
    async with watched.session as session:
        handlers = session.coordinator.hooks.list_handlers()
    # On tool:pre redaction is left out: it would change what the tool gets.
    assert handlers["tool:pre"] == ["hooks-approval", "hooks-logging"]
    assert handlers["provider:response"] == ["hooks-redaction", "hooks-logging"]
    assert handlers["test:custom"] == ["hooks-logging"]


@pytest.mark.parametrize("loop", ["loop-streaming", "loop-events"])
async def test_approved_turn_is_logged_without_secret(tmp_path, loop):
    path = tmp_path / "e.jsonl"
    approval = MockApprovalSystem(["Allow once"])
    tool = MockTool("deploy", respond=lambda given: {"used": given["api_key"]})
    watched = Watched(
        [("deploy", {"api_key": KEY, "where": "here"}), f"deployed with {KEY}"],
        tool,
        hooks=all_three(path),
        loop=loop,
        approval=approval,
    )
    assert await watched.run(f"deploy it with {KEY}") == f"deployed with {KEY}"
    assert tool.calls[0] == {"api_key": KEY, "where": "here"}, "the tool works with the real key"
    assert KEY in json.dumps(
        [m.content for m in watched.provider.requests[-1].messages], default=str
    )
    assert KEY in approval.requests[0]["prompt"], "a person sees what will happen"
    written = lines(path)
    assert KEY not in path.read_text()
    names = [line["event"] for line in written]
    story = [
        "prompt:submit",
        "tool:pre",
        "approval:required",
        "approval:granted",
        "tool:post",
        "execution:end",
    ]
    assert [name for name in names if name in story] == story
    for event in (
        "provider:request",
        "provider:response",
        "approval:required",
        "execution:end",
        "prompt:complete",
    ):
        assert all(KEY not in json.dumps(data, default=str) for data in watched.data(event)), event
        assert watched.data(event), event
    assert written[names.index("execution:end")]["redaction"] == {
        "applied": True,
        "rules": ["secrets", "pii-basic"],
    }


async def test_denied_call_is_logged_with_reason(tmp_path):
    path = tmp_path / "e.jsonl"
    tool = MockTool("deploy")
    hooks = all_three(
        path, rules=[{"tool": "deploy", "action": "deny", "reason": "not on a Friday"}]
    )
    watched = Watched([("deploy", {"x": 1}), "gave up"], tool, hooks=hooks)
    assert await watched.run() == "gave up"
    assert tool.calls == []
    recorded = {line["event"]: line for line in lines(path)}
    assert "not on a Friday" in recorded["approval:denied"]["data"]["reason"]
    assert recorded["approval:denied"]["lvl"] == "WARNING"
    assert recorded["tool:error"]["lvl"] == "ERROR"
    assert "not on a Friday" in recorded["tool:error"]["error"]["message"]


async def test_gate_sees_input_changed_by_hooks(tmp_path):
    async def rewrite(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {"command": "rm -rf x"}})

    tool = MockTool("bash")
    rules = [{"command": "git status", "action": "allow"}, {"command": "rm *", "action": "deny"}]
    watched = Watched(
        [("bash", {"command": "git status"}), "ok"],
        tool,
        hooks={"hooks-approval": {"rules": rules}},
        extra={"tool:pre": (rewrite, 50)},
    )
    await watched.run()
    assert tool.calls == []
    assert "forbidden by the plan" in watched.data("approval:denied")[0]["reason"]


async def test_redaction_of_all_events_hides_secrets(tmp_path):
    """With no events skipped, not even the model sees a secret."""
    tool = MockTool("read_file", respond=lambda given: f"token={KEY}")
    hooks: dict[str, dict[str, Any]] = {
        "hooks-redaction": {"skip_events": []},
        "hooks-approval": {},
    }
    watched = Watched([("read_file", {"path": "x"}), "done"], tool, hooks=hooks)
    await watched.run(f"use {KEY}")
    for request in watched.provider.requests:
        assert KEY not in json.dumps([m.content for m in request.messages], default=str)


async def test_closing_leaves_no_hooks(tmp_path):
    watched = Watched(["done"], hooks=all_three(tmp_path / "e.jsonl"))
    await watched.run()
    assert watched.session.statistics().handlers == 0
    assert watched.session.coordinator.session_state["hooks-logging"] == []
    assert watched.session.coordinator.get_capability("approval.register_provider") is None
