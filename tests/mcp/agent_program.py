"""Serves a scripted agent: ``agent_program.py BACKEND TRANSPORT FILE``; over HTTP it prints its URL.

The agent calls the tool ``step`` once and then answers. The prompt decides what the tool does: ``hang`` waits until it is cancelled and
notes both in FILE, ``ask`` needs permission, everything else is repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio

from amplifier import AmplifierSession, ModuleLoader
from amplifier.mcp import serve
from amplifier.models import HookResult, ToolResult
from amplifier.modules import context_simple, loop_basic
from amplifier.testing import MockProvider

BACKEND, TRANSPORT, FILE = sys.argv[1:4]


class Step:
    name, description = "step", "Does what the prompt says."

    async def execute(self, given: dict[str, Any]) -> ToolResult:
        if given["prompt"] == "hang":
            note("begun")
            try:
                await anyio.sleep_forever()
            finally:
                note("cancelled")
        return ToolResult(output=given["prompt"].upper())


def note(line: str) -> None:
    with Path(FILE).open("a") as file:
        file.write(f"{line}\n")


def last_user_message(request: Any) -> str:
    return next(str(message.content) for message in reversed(request.messages) if message.role == "user")


def play(request: Any) -> Any:
    """The model: a call of the tool, then the tool's result."""
    if request.messages[-1].role == "tool":
        return f"{len(request.messages)} messages; {request.messages[-1].content}"
    return ("step", {"prompt": last_user_message(request)})


async def mount_model(coordinator: Any, config: Any) -> None:
    await coordinator.mount("providers", MockProvider([play] * 100), name="mock")


async def mount_step(coordinator: Any, config: Any) -> None:
    await coordinator.mount("tools", Step())


async def mount_gate(coordinator: Any, config: Any) -> None:
    def judge(event: str, data: dict[str, Any]) -> HookResult:
        if data["tool_input"]["prompt"] != "ask":
            return HookResult()
        return HookResult(action="ask_user", approval_prompt="May it step?", approval_options=["Allow once", "Deny"])

    coordinator.hooks.register("tool:pre", judge, name="gate", on_failure="deny")


MODULES = {
    "loop-basic": loop_basic,
    "context-simple": context_simple,
    "provider-play": mount_model,
    "tool-step": mount_step,
    "hooks-gate": mount_gate,
}
PLAN = {
    "session": {"orchestrator": "loop-basic", "context": "context-simple"},
    "providers": ["provider-play"],
    "tools": ["tool-step"],
    "hooks": ["hooks-gate"],
}


async def main() -> None:
    await serve(
        lambda: AmplifierSession(PLAN, loader=ModuleLoader(modules=MODULES)),
        transport=TRANSPORT,  # type: ignore[arg-type]
        port=0,
        max_sessions=2,
        on_listening=lambda address: print(address, flush=True),
    )
    note("served")


anyio.run(main, backend=BACKEND)
