"""The events of a turn, and the messages of a stored conversation, as ``session/update`` notifications."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.turns import ToolUse, TurnRecord, error_text
from amplifier.shared_sessions import Question, Questions
from amplifier.shared_sessions.edits import Edit, Edits
from amplifier.shared_sessions.questions import DENY

from ..sessions import summary, takes_input
from ._connection import Connection, RpcError


@attrs.frozen(eq=False)
class Updates:
    """Shows one session to the client."""

    _connection: Connection
    _session_id: str
    _directory: Path  # to which paths are relative
    edits: Edits = attrs.field(
        default=attrs.Factory(lambda self: Edits(self._directory), takes_self=True), init=False
    )
    _calls: dict[str, _ShownCall] = attrs.field(factory=dict, init=False)

    async def _send(self, name: str, /, **fields: Any) -> None:
        update = {"sessionUpdate": name, **fields}
        await self._connection.notify(
            "session/update", {"sessionId": self._session_id, "update": update}
        )

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

    async def _start(
        self, call_id: str, tool: str, given: dict[str, Any], status: str = "in_progress"
    ) -> _ShownCall:
        call = self._calls.setdefault(call_id, _ShownCall())
        call.tool, call.description = (
            tool,
            describe_call(tool, given, self._directory, self.edits.find(call_id)),
        )
        await self._send("tool_call", toolCallId=call_id, status=status, **call.description)
        call.shown.set()
        return call

    async def _finish(self, event: ToolFinished, use: ToolUse) -> None:
        call = self._calls.get(event.tool_call_id)
        if (
            call is None or not call.shown.is_set()
        ):  # rejected before it began: an unknown tool, bad arguments
            call = await self._start(event.tool_call_id, event.tool_name, use.arguments)
        self.edits.pop(event.tool_call_id)
        await self._end(event.tool_call_id, call, use.result, is_good=event.success)
        if (
            event.success
            and event.tool_name == PLAN_TOOL
            and (entries := plan_entries(use.arguments)) is not None
        ):
            await self._send("plan", entries=entries)

    async def _end(self, call_id: str, call: _ShownCall, result: Any, *, is_good: bool) -> None:
        shown = describe_result(
            call.tool, result, has_diff="content" in call.description and is_good
        )
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
            elif (
                role == "tool"
                and (call := self._calls.get(str(message.get("tool_call_id")))) is not None
            ):
                output: Any = _text_of(message.get("content"))
                if call.tool in ("bash", "read_file"):
                    with suppress(ValueError):
                        output = json.loads(output)
                is_good = message.get("is_error") is not True
                await self._end(message["tool_call_id"], call, {"output": output}, is_good=is_good)

    async def _replay_answer(self, message: Mapping[str, Any]) -> None:
        content, calls = message.get("content"), message.get("tool_calls")
        for block in (
            content if isinstance(content, list) else [{"type": "text", "text": _text_of(content)}]
        ):
            if not isinstance(block, Mapping):
                continue
            if block.get("type") == "text":
                await self.text(str(block.get("text") or ""))
            elif block.get("type") == "thinking":
                await self.text(str(block.get("thinking") or ""), "agent_thought_chunk")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                name, given = str(call.get("name") or call.get("tool") or ""), call.get("arguments")
                await self._start(
                    call["id"], name, given if isinstance(given, dict) else {}, "pending"
                )


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


# ── tool calls ──

PLAN_TOOL: Final = "todo"
"""Its list is shown as the agent's plan."""

_KINDS: Final = {
    "read_file": "read",
    "list_directory": "read",
    "glob": "search",
    "grep": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "bash": "execute",
    "web_fetch": "fetch",
    "web_search": "fetch",
    PLAN_TOOL: "think",
}

_OUTPUTS: Final = {"bash": ("stdout", "stderr"), "read_file": ("content",)}
"""Members of an output that are the text a person wants to see."""

_TITLE_KEYS: Final = ("command", "file_path", "path", "pattern", "url", "query", "instruction")
_LONGEST_TITLE = 120
_LONGEST_TEXT = 50_000


def describe_call(
    tool: str, given: Mapping[str, Any], directory: Path, edit: Edit | None
) -> dict[str, Any]:
    """Title, kind, locations, input and, for a change of a file, the diff."""
    described: dict[str, Any] = {
        "title": _title(tool, given),
        "kind": _KINDS.get(tool, "other"),
        "rawInput": dict(given),
    }
    path = given.get("file_path")
    if isinstance(path, str) and path and "\0" not in path:
        absolute = str(directory / path)
        described["locations"] = [{"path": absolute}]
        old = new = None
        if tool == "edit_file":
            old, new = given.get("old_string"), given.get("new_string")
        elif edit is not None:
            old, new = edit.before, given.get("content")
        if isinstance(new, str) and isinstance(old, str | None):
            described["content"] = [
                {"type": "diff", "path": absolute, "oldText": old, "newText": new}
            ]
    return described


def _title(tool: str, given: Mapping[str, Any]) -> str:
    subject = next(
        (given[key] for key in _TITLE_KEYS if isinstance(given.get(key), str) and given[key]), ""
    )
    title = " ".join(f"{tool} {subject}".split())
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def describe_result(tool: str, result: Any, *, has_diff: bool) -> dict[str, Any]:
    """The output, for a call that is over; a diff that the call shows is not replaced by a successful result."""
    result = result if isinstance(result, Mapping) else {"output": result}
    output, error = result.get("output"), result.get("error")
    described: dict[str, Any] = {
        "rawOutput": output if error is None else {"output": output, "error": error}
    }
    if not (has_diff and error is None):
        text = _as_block(output, _OUTPUTS[tool]) if tool in _OUTPUTS else None
        if text is None:
            shown = "" if output is None else output
            text = shown if isinstance(shown, str) else json.dumps(shown, indent=2, default=str)
        if error is not None:
            text = "\n".join(filter(None, [text, f"Error: {error_text(error)}"]))
        described["content"] = (
            [{"type": "content", "content": {"type": "text", "text": _shortened(text)}}]
            if text
            else []
        )
    return described


def _as_block(output: Any, members: tuple[str, ...]) -> str | None:
    """What a command wrote or a file has, in a code block that its own text cannot close."""
    if not isinstance(output, dict) or not any(name in output for name in members):
        return None
    text = "".join(str(output.get(name) or "") for name in members).rstrip("\n")
    if not text:
        return ""
    fence = "```"
    while fence in text:
        fence += "`"
    language = "console" if "stdout" in members else ""
    return f"{fence}{language}\n{_shortened(text)}\n{fence}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters are not shown …\n{text[-half:]}"


def plan_entries(given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The list of a successful call of the todo tool, as entries of the agent's plan."""
    todos = given.get("todos")
    if not isinstance(todos, list):
        return None
    return [
        {
            "content": str(todo.get("content") or ""),
            "priority": "medium",
            "status": todo.get("status") or "pending",
        }
        for todo in todos
        if isinstance(todo, dict)
    ]


# ── editor ──

logger: logging.Logger = logging.getLogger("amplifier.servers.acp")

_SECONDS: Final = 10.0
"""For one file; the editor may ask its user nothing meanwhile."""


@attrs.frozen(eq=False)
class EditorFiles:
    """The capability ``session.editor_files`` of tool-filesystem, which has checked that it may touch a path."""

    _connection: Connection
    _session_id: str
    _can: Collection[str]  # what the client has said: ``readTextFile``, ``writeTextFile``

    async def read(self, path: str) -> str | None:
        """The text of a file; None to read it from disk."""
        found = await self._request("readTextFile", "fs/read_text_file", path=path)
        text = found.get("content") if isinstance(found, dict) else None
        return text if isinstance(text, str) else None

    async def write(self, path: str, text: str) -> bool:
        """Replace the text of a file; returns False to write it to disk."""
        return (
            await self._request("writeTextFile", "fs/write_text_file", path=path, content=text)
            is not _REFUSED
        )

    async def _request(self, capability: str, method: str, **params: str) -> Any:
        if capability not in self._can:
            return _REFUSED
        try:
            with anyio.fail_after(_SECONDS):
                return await self._connection.request(
                    method, {"sessionId": self._session_id, **params}
                )
        except (RpcError, TimeoutError) as error:  # such as a file that the editor does not know
            logger.info(
                "%s %s: %s; the disk is used",
                method,
                params["path"],
                str(error) or "no answer in time",
            )
            return _REFUSED


_REFUSED: Final = object()


_ALLOWING = {"allow": "allow_once", "allow once": "allow_once", "allow always": "allow_always"}
"""What counts as yes for the kernel; everything else is a no."""


def editor_questions(connection: Connection, updates: Updates, session_id: str) -> Questions:
    """The questions of one session, which the person at the editor is asked; whatever is not an option denies."""

    async def ask(question: Question) -> None:
        questions.answer(
            question.question_id, await _answer(connection, updates, session_id, question)
        )

    questions = Questions(ask)
    return questions


async def _answer(
    connection: Connection, updates: Updates, session_id: str, question: Question
) -> str:
    choices = [
        {
            "optionId": str(index),
            "name": option,
            "kind": _ALLOWING.get(option.lower(), "reject_once"),
        }
        for index, option in enumerate(question.options)
    ]
    asked = {
        "sessionId": session_id,
        "toolCall": await _subject(updates, question),
        "options": choices,
    }
    try:
        answer = await connection.request("session/request_permission", asked)
    except RpcError as error:
        logger.warning(
            "the client could not ask for permission, so it is denied: %s", error.message
        )
        return DENY
    outcome = answer.get("outcome") if isinstance(answer, dict) else None
    if isinstance(outcome, dict) and outcome.get("outcome") == "selected":
        chosen = {choice["optionId"]: choice["name"] for choice in choices}.get(
            str(outcome.get("optionId"))
        )
        if chosen is not None:
            return chosen
    if not isinstance(outcome, dict) or outcome.get("outcome") != "cancelled":
        logger.warning(
            "the client answered a question for permission with %.200r, so it is denied", answer
        )
    return DENY


async def _subject(updates: Updates, question: Question) -> dict[str, Any]:
    """The tool call that a question is about, with the question as part of its content."""
    text = {"type": "content", "content": {"type": "text", "text": question.prompt}}
    call_id = question.tool_call_id
    if call_id is None:
        title = next(iter(question.prompt.splitlines()), "") or "Permission needed"
        return {
            "toolCallId": question.question_id,
            "title": title,
            "kind": "other",
            "content": [text],
        }
    description = await updates.wait_started(call_id)
    content = [*description.get("content", []), text]
    return {"toolCallId": call_id, "status": "pending", **description, "content": content}
