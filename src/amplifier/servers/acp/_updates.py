"""The events of a turn, and the messages of a stored conversation, as ``session/update`` notifications."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier.live._edits import Edits
from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.turns import ToolUse, TurnRecord

from .._commands import summary, takes_input
from ._connection import Connection
from ._tool_calls import PLAN_TOOL, describe_call, describe_result, plan_entries


@attrs.frozen(eq=False)
class Updates:
    """Shows one session to the client."""

    _connection: Connection
    _session_id: str
    _directory: Path  # to which paths are relative
    edits: Edits = attrs.field(default=attrs.Factory(lambda self: Edits(self._directory), takes_self=True), init=False)
    _calls: dict[str, _ShownCall] = attrs.field(factory=dict, init=False)

    async def _send(self, name: str, /, **fields: Any) -> None:
        update = {"sessionUpdate": name, **fields}
        await self._connection.notify("session/update", {"sessionId": self._session_id, "update": update})

    async def text(self, text: str, kind: str = "agent_message_chunk") -> None:
        """Show text: of the agent, of its thoughts, or of the user."""
        if text:
            await self._send(kind, content={"type": "text", "text": text})

    async def commands(self, commands: Mapping[str, str]) -> None:
        """Show what can be typed after a slash; the texts by name."""
        listed = [
            {
                "name": name,
                "description": summary(text),
                **({"input": {"hint": "arguments"}} if takes_input(text) else {}),
            }
            for name, text in commands.items()
        ]
        if listed:
            await self._send("available_commands_update", availableCommands=listed)

    # ── a running turn ──

    def begin_turn(self) -> None:
        """A turn begins."""
        self._calls.clear()
        self.edits.clear()

    async def show(self, event: TurnEvent, text: str, record: TurnRecord) -> None:
        """Show one event, which the record has already, and the new text in it."""
        if text:
            await self.text(text)
        elif isinstance(event, ThinkingDelta):
            await self.text(event.text, "agent_thought_chunk")
        elif isinstance(event, ToolStarted):
            await self._start(event.tool_call_id, event.tool_name, event.tool_input)
        elif isinstance(event, ToolFinished):
            await self._finish(event, record.tools[event.tool_call_id])

    async def wait_started(self, call_id: str) -> dict[str, Any]:
        """Wait until a call has been shown to the client; returns its description."""
        call = self._calls.setdefault(call_id, _ShownCall())
        await call.shown.wait()
        return call.description

    async def _start(self, call_id: str, tool: str, given: dict[str, Any], status: str = "in_progress") -> _ShownCall:
        call = self._calls.setdefault(call_id, _ShownCall())
        call.tool, call.description = tool, describe_call(tool, given, self._directory, self.edits.find(call_id))
        await self._send("tool_call", toolCallId=call_id, status=status, **call.description)
        call.shown.set()
        return call

    async def _finish(self, event: ToolFinished, use: ToolUse) -> None:
        call = self._calls.get(event.tool_call_id)
        if call is None or not call.shown.is_set():  # rejected before it began: an unknown tool, bad arguments
            call = await self._start(event.tool_call_id, event.tool_name, use.arguments)
        self.edits.pop(event.tool_call_id)
        await self._end(event.tool_call_id, call, use.result, is_good=event.success)
        if event.success and event.tool_name == PLAN_TOOL and (entries := plan_entries(use.arguments)) is not None:
            await self._send("plan", entries=entries)

    async def _end(self, call_id: str, call: _ShownCall, result: Any, *, is_good: bool) -> None:
        shown = describe_result(call.tool, result, has_diff="content" in call.description and is_good)
        status = "completed" if is_good else "failed"
        await self._send("tool_call_update", toolCallId=call_id, status=status, **shown)

    # ── a stored conversation ──

    async def replay(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Show the messages of a conversation; system messages are not part of it."""
        for message in messages:
            role = message.get("role")
            if role == "user":
                await self.text(_text_of(message.get("content")), "user_message_chunk")
            elif role == "assistant":
                await self._replay_answer(message)
            elif role == "tool" and (call := self._calls.get(str(message.get("tool_call_id")))) is not None:
                output: Any = _text_of(message.get("content"))
                if call.tool in ("bash", "read_file"):
                    with suppress(ValueError):
                        output = json.loads(output)
                is_good = message.get("is_error") is not True
                await self._end(message["tool_call_id"], call, {"output": output}, is_good=is_good)

    async def _replay_answer(self, message: Mapping[str, Any]) -> None:
        content, calls = message.get("content"), message.get("tool_calls")
        for block in content if isinstance(content, list) else [{"type": "text", "text": _text_of(content)}]:
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "text":
                await self.text(str(block.get("text") or ""))
            elif block.get("type") == "thinking":
                await self.text(str(block.get("thinking") or ""), "agent_thought_chunk")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                name, given = str(call.get("name") or call.get("tool") or ""), call.get("arguments")
                await self._start(call["id"], name, given if isinstance(given, dict) else {}, "pending")


@attrs.define(eq=False)
class _ShownCall:
    """A tool call of the running turn, or of a stored conversation."""

    tool: str = ""
    description: dict[str, Any] = attrs.field(factory=dict)
    shown: anyio.Event = attrs.field(factory=anyio.Event)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, Mapping))
