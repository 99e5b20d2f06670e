"""What the editor is asked for: its files, which may have changes that are not saved, and the permission of the person at it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

import anyio
import attrs

from amplifier.live import Question, Questions
from amplifier.live._questions import DENY

from ._connection import Connection, RpcError
from ._updates import Updates

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
        return await self._request("writeTextFile", "fs/write_text_file", path=path, content=text) is not _REFUSED

    async def _request(self, capability: str, method: str, **params: str) -> Any:
        if capability not in self._can:
            return _REFUSED
        try:
            with anyio.fail_after(_SECONDS):
                return await self._connection.request(method, {"sessionId": self._session_id, **params})
        except (RpcError, TimeoutError) as error:  # such as a file that the editor does not know
            logger.info("%s %s: %s; the disk is used", method, params["path"], str(error) or "no answer in time")
            return _REFUSED


_REFUSED: Final = object()


_KINDS = {"allow": "allow_once", "allow once": "allow_once", "allow always": "allow_always"}
"""What counts as yes for the kernel; everything else is a no."""


def editor_questions(connection: Connection, updates: Updates, session_id: str) -> Questions:
    """The questions of one session, which the person at the editor is asked; whatever is not an option denies."""

    async def ask(question: Question) -> None:
        questions.answer(question.question_id, await _answer(connection, updates, session_id, question))

    questions = Questions(ask)
    return questions


async def _answer(connection: Connection, updates: Updates, session_id: str, question: Question) -> str:
    choices = [
        {"optionId": str(index), "name": option, "kind": _KINDS.get(option.lower(), "reject_once")}
        for index, option in enumerate(question.options)
    ]
    asked = {"sessionId": session_id, "toolCall": await _subject(updates, question), "options": choices}
    try:
        answer = await connection.request("session/request_permission", asked)
    except RpcError as error:
        logger.warning("the client could not ask for permission, so it is denied: %s", error.message)
        return DENY
    outcome = answer.get("outcome") if isinstance(answer, dict) else None
    if isinstance(outcome, dict) and outcome.get("outcome") == "selected":
        chosen = {choice["optionId"]: choice["name"] for choice in choices}.get(str(outcome.get("optionId")))
        if chosen is not None:
            return chosen
    if not isinstance(outcome, dict) or outcome.get("outcome") != "cancelled":
        logger.warning("the client answered a question for permission with %.200r, so it is denied", answer)
    return DENY


async def _subject(updates: Updates, question: Question) -> dict[str, Any]:
    """The tool call that a question is about, with the question as part of its content."""
    text = {"type": "content", "content": {"type": "text", "text": question.prompt}}
    call_id = question.tool_call_id
    if call_id is None:
        title = next(iter(question.prompt.splitlines()), "") or "Permission needed"
        return {"toolCallId": question.question_id, "title": title, "kind": "other", "content": [text]}
    description = await updates.wait_started(call_id)
    content = [*description.get("content", []), text]
    return {"toolCallId": call_id, "status": "pending", **description, "content": content}
