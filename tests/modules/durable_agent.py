"""An agent for tests that kill it: its tools note their effects in a file, its model follows a script by the transcript alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from amplifier import AmplifierSession, ChatResponse, ModuleLoader, ToolCall, ToolResult
from amplifier.contracts import current_call
from amplifier.errors import NoUnfinishedTurnError
from amplifier.models import TextBlock
from amplifier.store import SessionIndex
from amplifier.testing import MockProvider
from tests._support.small_agent import mounting

SESSION = "s"
ANSWERS = 4
TOOLS = ("again", "once", "again", "unknown")
"""Called by each answer, at the same time: repeatable, not repeatable, repeatable, and one that declares nothing."""


class EffectTool:
    """Appends its effect to a file, on disk, and returns what it wrote."""

    description = "Has an effect."

    def __init__(self, name: str, file: Path, repeatable: bool | None) -> None:
        self.name = name
        self._file = file
        if repeatable is not None:
            self.repeatable = repeatable

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        call = current_call()
        assert call is not None
        effect = f"{call.call_id} {secrets.token_hex(4)}"
        await anyio.to_thread.run_sync(self._append, effect)
        return ToolResult(output=effect)

    def _append(self, effect: str) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{effect}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)


class ScriptedModel:
    """Answers by the number of answers in the request; it knows nothing else, so every process gets the same."""

    name = "scripted"

    def __init__(self) -> None:
        plain = MockProvider(["unused"])
        self.get_info, self.list_models = plain.get_info, plain.list_models

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        number = sum(message.role == "assistant" for message in request.messages)
        if number >= ANSWERS:
            return ChatResponse(content=[TextBlock(text="All done.")])
        calls = [
            ToolCall(id=f"c{number}.{place}", name=name, arguments={})
            for place, name in enumerate(TOOLS)
        ]
        return ChatResponse(content=[], tool_calls=calls)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


def make_session(root: Path, loop: str = "loop-basic", **context: Any) -> AmplifierSession:

    effects = root / "effects"
    repeatable = {"again": True, "once": False, "unknown": None}
    modules = {
        f"tool-{name}": mounting(EffectTool(name, effects, may)) for name, may in repeatable.items()
    }
    modules["provider-scripted"] = mounting(ScriptedModel())
    config = {"path": str(root), "durable_turns": True, **context}
    plan = {
        "session": {
            "orchestrator": loop,
            "context": {"module": "context-persistent", "config": config},
        },
        "providers": ["provider-scripted"],
        "tools": [f"tool-{name}" for name in repeatable],
    }
    return AmplifierSession(plan, ModuleLoader(modules=modules), session_id=SESSION)


async def run_turn(root: Path) -> str:
    """Begin the turn, or go on with it."""
    async with make_session(root) as session:
        if not await session.coordinator.get("context").get_messages():
            return await session.execute("go")
        try:
            return await session.resume_turn()
        except NoUnfinishedTurnError:
            return "All done."


# ── what is on disk ──


def messages_in(root: Path) -> list[dict[str, Any]]:
    return SessionIndex(root).transcript(SESSION)


def steps_in(root: Path) -> list[dict[str, Any]]:
    return SessionIndex(root).steps(SESSION)


def acknowledged(root: Path) -> dict[str, str]:
    """The results that are stored, in the transcript or in the journal, by call id."""
    known = {
        step["call"]: str(step["result"].get("output") or step["result"])
        for step in steps_in(root)
        if step["step"] == "finished"
    }
    return known | {
        m["tool_call_id"]: m["content"] for m in messages_in(root) if m["role"] == "tool"
    }


def effects(root: Path) -> list[tuple[str, str]]:
    """Call id and nonce of every effect, in order."""
    file = root / "effects"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], line) for line in lines]


def transcript_problems(messages: Sequence[dict[str, Any]], *, is_whole: bool) -> list[str]:
    """What is wrong with a transcript: results in the order of the calls, each under its own id and from its own call."""
    problems = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            expected = waiting.pop(0) if waiting else None
            if message["tool_call_id"] != expected:
                problems.append(
                    f"a result for {message['tool_call_id']}, expected one for {expected}"
                )
            content = message["content"]
            if (
                not content.startswith(f"{message['tool_call_id']} ")
                and "interrupted" not in content
            ):
                problems.append(f"the result of {message['tool_call_id']} is {content!r}")
        elif waiting:
            problems.append(f"{message['role']} comes before results for {waiting}")
        if message["role"] == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    if is_whole and waiting:
        problems.append(f"no results for {waiting}")
    return problems
