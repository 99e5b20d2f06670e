"""The files of the editor: what is open there may have changes that are not saved, and shows what an agent writes."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

import anyio
import attrs

from ._connection import Connection, RpcError

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
