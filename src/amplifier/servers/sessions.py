"""The application's side of a server: its sessions and the user's commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
from anyio.to_thread import run_sync

from amplifier._internal.json import visible_text
from amplifier.contracts import ApprovalSystem
from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession
from amplifier.store import SessionIndex


@attrs.frozen(kw_only=True)
class SessionRequest:
    """A client's request for a session.

    Attributes:
        session_id: The id of the session. None for a session of a single turn, and its conversation
            comes with the request. Such a session needs a context in memory.
        approvals: Asks the user. None if the protocol can't ask, so that questions are denied.
        is_resumed: True if a session of this id existed before.
        directory: The directory that the client works in, as an editor does, or None.
        servers: The client's MCP servers by name, as in the configuration of tool-mcp.
    """

    session_id: str | None = None
    approvals: ApprovalSystem | None = None
    is_resumed: bool = False
    directory: Path | None = None
    servers: dict[str, dict[str, Any]] = attrs.field(factory=dict)


SessionFactory: TypeAlias = Callable[[SessionRequest], AmplifierSession]
"""Makes a session. The server opens and closes it."""

SessionCheck: TypeAlias = Callable[[AmplifierSession], None]
"""Raises if a session that has just been opened can't be used."""


def require_provider(session: AmplifierSession) -> None:
    """Refuse a session without a provider. This is the default check of a server."""
    if not session.coordinator.get("providers"):
        raise AmplifierError("no provider of the plan is available")


async def describe_session(
    index: SessionIndex | None,
    session_id: str,
    *,
    status: str | None = None,
    title: str | None = None,
    prompt: str | None = None,
) -> None:
    """Update the listing of a session. See `SessionRecord.used`."""
    if index is None:
        return

    def write() -> None:
        record = index.record(session_id)
        record = record if title is None else attrs.evolve(record, title=title)
        index.write(record.used(status, prompt=prompt))

    await run_sync(write)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────
#
# A command is a text for the model, under a name that the user chooses. It may start with front
# matter between two '---' lines, which can contain a ``description`` for people. The model doesn't
# get the front matter.

_ARGUMENTS: Final = "$ARGUMENTS"
_HEAD: Final = re.compile(r"---\n(.*?)^---\s*?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_DESCRIPTION: Final = re.compile(r"""^description:\s*(["']?)(.+?)\1\s*$""", re.MULTILINE)


def summary(text: str) -> str:
    """Return the description of a command or, without one, its first line."""
    head = _HEAD.match(text)
    described = None if head is None else _DESCRIPTION.search(head[1])
    first = _body(text).partition("\n")[0].lstrip("# ")
    return visible_text(first if described is None else described[2], multiline=False)


def takes_input(text: str) -> bool:
    """Return whether a command has a placeholder for its arguments."""
    return _ARGUMENTS in text


def expanded(text: str, argument: str) -> str:
    """Return the text of a command with this argument."""
    body = _body(text)
    return (
        body.replace(_ARGUMENTS, argument) if takes_input(body) else f"{body}\n\n{argument}".strip()
    )


def _body(text: str) -> str:
    head = _HEAD.match(text)
    return (text if head is None else text[head.end() :]).strip()
