"""A gate: a hook module that refuses some tool calls, asks a person about others, and denies when it fails itself.

python examples/gate_hook.py
amplifier module validate examples/gate_hook.py
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import PurePath
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from amplifier import AmplifierSession, HookResult, ModuleLoader

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Gate:
    """Keeps files secret by their name, and asks before anything is written."""

    def __init__(self, secret: list[str]) -> None:
        self.secret = secret

    async def judge(self, event: str, data: dict[str, Any]) -> HookResult:
        """Look at a tool call that is about to run; whatever the payload, answer."""
        tool_input = data.get("tool_input")
        path = str(tool_input.get("file_path", "")) if isinstance(tool_input, dict) else ""
        if PurePath(path).name in self.secret:
            return HookResult(action="deny", reason=f"{path} is kept secret")
        if data.get("tool_name") in ("write_file", "edit_file"):
            return HookResult(
                action="ask_user",
                approval_prompt=f"May I write {path}?",
                approval_options=["Allow", "Deny"],
            )
        return HookResult(action="continue")


async def mount(coordinator: Any, config: dict[str, Any]) -> Callable[[], None]:
    """Check every tool call before it runs; the returned function unregisters the gate."""
    gate = Gate(config.get("secret", [".env"]))
    undo: Callable[[], None] = coordinator.hooks.register(
        "tool:pre", gate.judge, priority=10, name="gate", on_failure="deny"
    )
    logger.info("the gate checks every tool call; secret: %s", ", ".join(gate.secret))
    return undo


class Person:
    """The application's side: answers what hooks ask. A real one shows the question and waits."""

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        answer = "Allow" if "diary" in prompt else "Deny"
        print(f"  asked: {prompt} {answer}")
        return answer


async def broken_mount(coordinator: Any, config: dict[str, Any]) -> Callable[[], None]:
    """A gate with a fault, to see what happens: it denies."""

    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        raise ConnectionError("the policy server does not answer")

    undo: Callable[[], None] = coordinator.hooks.register("tool:pre", judge, name="broken-gate")
    return undo


MODULES = {"hooks-gate": mount, "hooks-broken-gate": broken_mount}


def plan(gate: str, folder: str) -> dict[str, Any]:
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-offline"}],
        "tools": [{"module": "tool-filesystem", "config": {"allowed_paths": [folder]}}],
        # With "deny", the session doesn't open if the gate can't be mounted.
        "hooks": [{"module": gate, "on_failure": "deny"}],
    }


async def ask(gate: str, folder: str, *prompts: str) -> None:
    async with AmplifierSession(
        plan(gate, folder), ModuleLoader(modules=MODULES), approval_system=Person()
    ) as session:
        for prompt in prompts:
            answer = await session.execute(prompt)
            print(f"  {prompt} → {answer.splitlines()[0]}")


async def main(backend: str) -> None:
    with TemporaryDirectory() as folder:
        await anyio.Path(folder, ".env").write_text("PASSWORD=hunter2\n")
        await anyio.Path(folder, "notes.txt").write_text("Buy milk.\n")
        print(f"── a gate, on {backend}")
        await ask("hooks-gate", folder, "read notes.txt", "read .env")
        await ask(
            "hooks-gate", folder, 'write "dear diary" to diary.txt', 'write "nothing" to notes.txt'
        )
        print("── a gate that fails; the kernel logs the reason on standard error")
        await ask("hooks-broken-gate", folder, "read notes.txt")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["asyncio", "trio"]:
        anyio.run(main, name, backend=name)
