"""Plays the published-style agent through scenarios and returns what was observed, the same way on either kernel.

As a program (``python -m tests.compat.agent_play DIRECTORY``) it reads one scenario per line as JSON and answers with a line of JSON. The
directory holds the modules and is where the agent works.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from .published_agent import agent_plan

SHELL = "echo from the shell"
WORK = {"todos": [{"content": "count", "status": "pending"}], "action": "create"}

SCENARIOS: dict[str, dict[str, Any]] = {
    "an answer": {"script": ["hello there"]},
    "two turns": {"script": ["one", "two"], "prompts": ["first", "second"]},
    "all tools": {
        "script": [
            {"write_file": {"file_path": "a.txt", "content": "alpha\nkey sk-abc123def\n"}},
            {"read_file": {"file_path": "a.txt"}, "grep": {"pattern": "alp"}},
            {"todo": WORK},
            {"bash": {"command": SHELL}},
            {"read_file": {"file_path": "none.txt"}, "unknown": {}},
            "All done.",
        ]
    },
    "a secret in the prompt": {"script": ["ok"], "prompts": ["use sk-abcdef123456 please"]},
    "a refused tool": {"script": [{"bash": {"command": SHELL}}, "fine"], "approved": False},
    "a failing command": {"script": [{"bash": {"command": "echo no >&2; exit 3"}}, "fine"]},
    "a busy provider": {"script": ["busy", "busy", "at last"]},
    "a provider that refuses": {"script": ["refused", "recovered"], "prompts": ["first", "second"]},
    "a graceful stop": {"script": [{"cancel": "graceful", "todo": WORK}, "never"]},
    "an immediate stop while the provider answers": {"script": [{"cancel": "immediate"}, "never"]},
    "a child": {"script": ["c"], "options": {"parent_id": "parent"}},
    "a resumed session": {"script": ["c"], "options": {"is_resumed": True}},
    "a session that shows its plan": {
        "script": ["c"],
        "session": {"raw": True, "metadata": {"agent": "x"}},
    },
    "modules that fail to load": {"script": ["c"], "missing": True},
}

UNSTABLE = {"timestamp": "now", "parallel_group_id": "group", "request_id": "request"}
TOGETHER = ("tool:", "artifact:", "approval:")


class Source:
    """The path of a module that a resolver found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        return self.path


class Resolver:
    """Finds the modules in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Source:
        from amplifier_core.module_sources import ModuleNotFoundError as NotFound  # type: ignore[import-not-found]

        path = self.directory / f"amplifier-module-{module_id}"
        if not path.exists():
            raise NotFound(f"no module {module_id}")
        return Source(path)


class Approver:
    """Approves everything, or nothing."""

    def __init__(self, approved: bool) -> None:
        self.approved = approved
        self.asked: list[str] = []

    async def request_approval(self, request: Any) -> Any:
        from amplifier_core import ApprovalResponse  # type: ignore[import-not-found]

        self.asked.append(request.tool_name)
        return ApprovalResponse(approved=self.approved, reason="as configured")


async def build(
    session_class: Any, plan: dict[str, Any], directory: Path, **options: Any
) -> tuple[Any, list[Any]]:
    """A session over the modules in a directory, with its log; not opened."""
    session = session_class(plan, session_id="s", **options)
    log: list[Any] = []
    await session.coordinator.mount("module-source-resolver", Resolver(directory))
    session.coordinator.register_capability("session.working_dir", str(directory))
    session.coordinator.register_capability("test.log", log)
    return session, log


def approve_with(session: Any, approver: Approver) -> None:
    """Give the approval hook an approval system; applications do this after the session is open."""
    session.coordinator.get_capability("approval.register_provider")(approver)


async def play(scenario: dict[str, Any], loop: str, directory: Path) -> dict[str, Any]:
    """Play one scenario in a published session."""
    from amplifier_core import AmplifierSession

    plan = agent_plan(loop, scenario["script"], **scenario.get("session", {}))
    if scenario.get("missing"):
        plan["tools"].append({"module": "tool-missing"})  # type: ignore[attr-defined]
        plan["providers"].append({"module": "provider-missing"})  # type: ignore[attr-defined]
    session, log = await build(AmplifierSession, plan, directory, **scenario.get("options", {}))

    async def early(event: str, data: Any) -> None:
        log.append((event, dict(data)))

    session.coordinator.hooks.register("module:load_failed", early, name="early")
    approver = Approver(scenario.get("approved", True))
    outcomes = []
    async with session:
        approve_with(session, approver)
        coordinator = session.coordinator
        provider, bash = coordinator.get("providers")["scripted"], coordinator.get("tools")["bash"]
        for prompt in scenario.get("prompts", ["go"]):
            try:
                outcomes.append(["returned", await session.execute(prompt)])
            except Exception as error:
                outcomes.append(["raised", type(error).__name__, str(error)])
        messages = await coordinator.get("context").get_messages()
        left = sorted(coordinator.cancellation.running_tools)
        handlers = {event for event, names in coordinator.hooks.list_handlers().items() if names}
        tools = sorted(coordinator.get("tools"))
    still = {event for event, names in session.coordinator.hooks.list_handlers().items() if names}
    return {
        "outcomes": outcomes,
        "events": in_order([stable(entry) for entry in log]),
        "messages": stable(messages),
        "requests": stable(provider.seen),
        "asked": approver.asked,
        "state": stable(session.coordinator.session_state),
        "todos": session.coordinator.todo_state,
        "tools": tools,
        "left running": left,
        "closed": [provider.is_closed, bash.is_closed, session.initialized],
        "handlers": [sorted(handlers), sorted(still)],
    }


def stable(value: Any) -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: UNSTABLE.get(key) or stable(member) for key, member in value.items()}
    return [stable(member) for member in value] if isinstance(value, list | tuple) else value


def in_order(events: list[Any]) -> list[Any]:
    """Events with those of tools that run at the same time in one order."""
    ordered: list[Any] = []
    group: list[Any] = []
    for event in [*events, None]:
        if event is not None and event[0].startswith(TOGETHER):
            group.append(event)
            continue
        ordered += sorted(group, key=lambda entry: json.dumps(entry, sort_keys=True, default=str))
        group = []
        if event is not None:
            ordered.append(event)
    return ordered


def _main() -> None:
    import logging

    if os.environ.get("AMPLIFIER_COMPAT"):
        import amplifier.compat

        amplifier.compat.install()
    logging.disable(logging.CRITICAL)
    directory = Path(sys.argv[1])
    for line in sys.stdin:
        name, loop = json.loads(line)
        for made in directory.glob("*.txt"):
            made.unlink()
        seen = asyncio.run(play(SCENARIOS[name], loop, directory))
        print(json.dumps(seen, sort_keys=True, default=str), flush=True)


if __name__ == "__main__":
    _main()
