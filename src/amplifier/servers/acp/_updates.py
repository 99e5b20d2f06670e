"""The updates about a session that the client gets, and requests to its editor."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from amplifier._internal.json import JSON
from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.turns import ToolUse, TurnRecord, error_text
from amplifier.shared_sessions import Question, Questions
from amplifier.shared_sessions.edits import Edit, Edits
from amplifier.shared_sessions.questions import DENY

from ..sessions import summary, takes_input
from ._connection import Connection, RpcError


@attrs.frozen(eq=False)
class Updates:
    """Shows one session to the client.

    Attributes:
        connection: The connection to the client.
        session_id: The id of the session.
        directory: The directory to which paths are relative.
        edits: The changes that the running calls make to files.
    """

    _connection: Connection
    _session_id: str
    _directory: Path
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
        """Show text of the agent, of its thoughts, or of the user."""
        if text:
            await self._send(kind, content={"type": "text", "text": text})

    async def commands(self, commands: Mapping[str, str]) -> None:
        """Show the commands that can be typed after a slash.

        Args:
            commands: The texts of the commands by name.
        """
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
        """Forget the calls of the previous turn."""
        self._calls.clear()
        self.edits.clear()

    async def show(self, event: TurnEvent, text: str, record: TurnRecord) -> None:
        """Show one event that is already in the record, and the new text in it."""
        if text:
            await self.text(text)
        elif isinstance(event, ThinkingDelta):
            await self.text(event.text, "agent_thought_chunk")
        elif isinstance(event, ToolStarted):
            await self._start(event.tool_call_id, event.tool_name, event.tool_input)
        elif isinstance(event, ToolFinished):
            await self._finish(event, record.tools[event.tool_call_id])

    async def wait_started(self, call_id: str) -> dict[str, JSON]:
        """Wait until the client has seen a call. Return the call's description."""
        call = self._calls.setdefault(call_id, _ShownCall())
        await call.shown.wait()
        return call.description

    async def _start(
        self, call_id: str, tool: str, arguments: dict[str, JSON], status: str = "in_progress"
    ) -> _ShownCall:
        call = self._calls.setdefault(call_id, _ShownCall())
        call.tool = tool
        edit = self.edits.find(call_id)
        call.description = describe_call(tool, arguments, self._directory, edit)
        await self._send("tool_call", toolCallId=call_id, status=status, **call.description)
        call.shown.set()
        return call

    async def _finish(self, event: ToolFinished, use: ToolUse) -> None:
        call = self._calls.get(event.tool_call_id)
        if call is None or not call.shown.is_set():
            # The call was rejected before it started, because of an unknown tool or invalid
            # arguments.
            call = await self._start(event.tool_call_id, event.tool_name, use.arguments)
        self.edits.pop(event.tool_call_id)
        await self._end(event.tool_call_id, call, use.result, is_good=event.success)
        if (
            event.success
            and event.tool_name == PLAN_TOOL
            and (entries := plan_entries(use.arguments)) is not None
        ):
            await self._send("plan", entries=entries)

    async def _end(self, call_id: str, call: _ShownCall, result: object, *, is_good: bool) -> None:
        shown = describe_result(
            call.tool, result, has_diff="content" in call.description and is_good
        )
        status = "completed" if is_good else "failed"
        await self._send("tool_call_update", toolCallId=call_id, status=status, **shown)

    # ── a stored conversation ──

    async def replay(self, messages: Iterable[Mapping[str, JSON]]) -> None:
        """Show the messages of a conversation, without system messages."""
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

    async def _replay_answer(self, message: Mapping[str, JSON]) -> None:
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
                name, arguments = call.get("name") or call.get("tool") or "", call.get("arguments")
                await self._start(
                    call["id"],
                    str(name),
                    arguments if isinstance(arguments, dict) else {},
                    "pending",
                )


@attrs.define(eq=False)
class _ShownCall:
    """A tool call of the running turn, or of a stored conversation."""

    tool: str = ""
    description: dict[str, JSON] = attrs.field(factory=dict)
    shown: anyio.Event = attrs.field(factory=anyio.Event)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, Mapping))


# ── tool calls ──

PLAN_TOOL: Final = "todo"
"""The tool whose list is shown as the agent's plan."""

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
"""The members of an output that are shown to the user as text."""

_TITLE_KEYS: Final = ("command", "file_path", "path", "pattern", "url", "query", "instruction")
_MAX_TITLE_LENGTH = 120
_MAX_TEXT_LENGTH = 50_000


def describe_call(
    tool: str, arguments: Mapping[str, JSON], directory: Path, edit: Edit | None
) -> dict[str, JSON]:
    """Return the title, kind, locations and input of a call, and the diff of a changed file."""
    described: dict[str, JSON] = {
        "title": _title(tool, arguments),
        "kind": _KINDS.get(tool, "other"),
        "rawInput": dict(arguments),
    }
    path = arguments.get("file_path")
    if isinstance(path, str) and path and "\0" not in path:
        absolute = str(directory / path)
        described["locations"] = [{"path": absolute}]
        old = new = None
        if tool == "edit_file":
            old, new = arguments.get("old_string"), arguments.get("new_string")
        elif edit is not None:
            old, new = edit.before, arguments.get("content")
        if isinstance(new, str) and isinstance(old, str | None):
            described["content"] = [
                {"type": "diff", "path": absolute, "oldText": old, "newText": new}
            ]
    return described


def _title(tool: str, arguments: Mapping[str, object]) -> str:
    values = (arguments.get(key) for key in _TITLE_KEYS)
    subject = next((value for value in values if isinstance(value, str) and value), "")
    title = " ".join(f"{tool} {subject}".split())
    return title if len(title) <= _MAX_TITLE_LENGTH else f"{title[: _MAX_TITLE_LENGTH - 1]}…"


def describe_result(tool: str, result: object, *, has_diff: bool) -> dict[str, JSON]:
    """Return the output of a finished call. A successful call keeps its diff."""
    result = result if isinstance(result, Mapping) else {"output": result}
    output, error = result.get("output"), result.get("error")
    described: dict[str, JSON] = {
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


def _as_block(output: object, members: tuple[str, ...]) -> str | None:
    """Return the text of a command or a file in a code block that the text can't close."""
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
    if len(text) <= _MAX_TEXT_LENGTH:
        return text
    half = _MAX_TEXT_LENGTH // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters are not shown …\n{text[-half:]}"


def plan_entries(arguments: Mapping[str, JSON]) -> list[dict[str, JSON]] | None:
    """Return the list from a successful call to the todo tool, as entries of the agent's plan."""
    todos = arguments.get("todos")
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

_FILE_SECONDS: Final = 10.0
"""Deadline for one file, in seconds. It leaves the editor no time to ask its user."""


@attrs.frozen(eq=False)
class EditorFiles:
    """The capability ``session.editor_files`` of tool-filesystem, which has checked the path.

    Attributes:
        connection: The connection to the client.
        session_id: The id of the session.
        capabilities: The client's capabilities: ``readTextFile``, ``writeTextFile``.
    """

    _connection: Connection
    _session_id: str
    _capabilities: Collection[str]

    async def read(self, path: str) -> str | None:
        """Return the text of a file, or None to read it from disk."""
        response = await self._request("readTextFile", "fs/read_text_file", path=path)
        text = response.get("content") if isinstance(response, dict) else None
        return text if isinstance(text, str) else None

    async def write(self, path: str, text: str) -> bool:
        """Replace the text of a file. Return False if the caller has to write to disk."""
        return (
            await self._request("writeTextFile", "fs/write_text_file", path=path, content=text)
            is not _REFUSED
        )

    async def _request(self, capability: str, method: str, **params: str) -> Any:
        if capability not in self._capabilities:
            return _REFUSED
        try:
            with anyio.fail_after(_FILE_SECONDS):
                return await self._connection.request(
                    method, {"sessionId": self._session_id, **params}
                )
        except (RpcError, TimeoutError) as error:
            # Perhaps the editor doesn't have the file.
            logger.info(
                "%s %s: %s; the disk is used",
                method,
                params["path"],
                str(error) or "no answer in time",
            )
            return _REFUSED


_REFUSED: Final = object()


_ALLOWING = {"allow": "allow_once", "allow once": "allow_once", "allow always": "allow_always"}
"""The options that the kernel takes as yes. It takes all others as no."""


def editor_questions(connection: Connection, updates: Updates, session_id: str) -> Questions:
    """Return the questions of one session for the user of the editor.

    An answer that isn't an option counts as a denial.
    """

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


async def _subject(updates: Updates, question: Question) -> dict[str, JSON]:
    """Return the tool call of a question. Its content includes the question."""
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
