"""Serves a scripted agent: ``agent_program.py BACKEND TRANSPORT``; over HTTP it prints its URL.

Over HTTP its clients need the token in the variable ``TOKEN``, or one of the authorization server in ``ISSUER``.

The agent calls the tool ``step`` once and then answers. The prompt decides what the tool does: ``hang FILE`` waits until it is cancelled
and notes both in FILE, ``ask`` needs permission, everything else is repeated.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

from amplifier import AmplifierSession, ModuleLoader
from amplifier.models import HookResult, ToolResult
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
from amplifier.servers.access import listen_on
from amplifier.servers.mcp import serve
from amplifier.testing import MockProvider

BACKEND, TRANSPORT = sys.argv[1:3]


class Step:
    name, description = "step", "Does what the prompt says."

    async def execute(self, given: dict[str, Any]) -> ToolResult:
        action, _, file = given["prompt"].partition(" ")
        if action == "hang":
            note(file, "begun")
            try:
                await anyio.sleep_forever()
            finally:
                note(file, "cancelled")
        return ToolResult(output=given["prompt"].upper())


def note(file: str, line: str) -> None:
    with Path(file).open("a") as notes:
        notes.write(f"{line}\n")


def last_user_message(request: Any) -> str:
    return next(
        str(message.content) for message in reversed(request.messages) if message.role == "user"
    )


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
        return HookResult(
            action="ask_user",
            approval_prompt="May it step?",
            approval_options=["Allow once", "Deny"],
        )

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


class Introspection:
    """Asks the authorization server about tokens."""

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx2.AsyncClient() as client:
            told = (
                await client.post(f"{os.environ['ISSUER']}/introspect", data={"token": token})
            ).json()
        if not told["active"]:
            return None
        return AccessToken(
            token=token, client_id=told["client_id"], scopes=[], resource=told["aud"]
        )


async def main() -> None:
    listening = listen_on("127.0.0.1", 0) if TRANSPORT == "http" else None
    guarded: dict[str, Any] = {"token": os.environ.get("TOKEN")}
    if (issuer := os.environ.get("ISSUER")) and listening is not None:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        auth = AuthSettings.model_validate(
            {"issuer_url": issuer, "resource_server_url": url, "validate_token_resource": True}
        )
        guarded = {"auth": auth, "token_verifier": Introspection()}
    await serve(
        lambda: AmplifierSession(PLAN, loader=ModuleLoader(modules=MODULES)),
        transport=TRANSPORT,  # type: ignore[arg-type]
        listening=listening,
        prompts={"tidy": "# Tidy up\nTidy $ARGUMENTS.", "look": "Look around."},
        **guarded,
        max_sessions=2,
        on_listening=lambda address: print(address, flush=True),
    )


anyio.run(main, backend=BACKEND)
