"""What the editor is asked for: its files, which may have changes that are not saved, and the permission of the person at it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

import anyio
import attrs

from amplifier.live import Question
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


@attrs.define(eq=False)
class EditorApprovals:
    """The approval system of one session; whatever the client answers that is not an option denies.

    The kernel keeps the time limit and cancels a question when the time is over.
    """

    _connection: Connection
    _updates: Updates
    _session_id: str
    _asked: int = attrs.field(default=0, init=False)

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask, and return the option that was chosen."""
        choices = [
            {"optionId": str(index), "name": option, "kind": _KINDS.get(option.lower(), "reject_once")}
            for index, option in enumerate(options)
        ]
        call_id = Question.for_permission(prompt, options, timeout, default).tool_call_id
        question = {"sessionId": self._session_id, "toolCall": await self._subject(prompt, call_id), "options": choices}
        try:
            answer = await self._connection.request("session/request_permission", question)
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

    async def _subject(self, prompt: str, call_id: str | None) -> dict[str, Any]:
        """The tool call that the question is about, with the question as part of its content."""
        question = {"type": "content", "content": {"type": "text", "text": prompt}}
        if call_id is None:
            self._asked += 1
            title = next(iter(prompt.splitlines()), "") or "Permission needed"
            return {"toolCallId": f"permission-{self._asked}", "title": title, "kind": "other", "content": [question]}
        description = await self._updates.wait_started(call_id)
        content = [*description.get("content", []), question]
        return {"toolCallId": call_id, "status": "pending", **description, "content": content}
