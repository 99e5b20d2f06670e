"""What every server needs from the application around it: how sessions are made and checked, where they are kept, commands of the user's own."""

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
    """What a session is needed for.

    Attributes:
        session_id: Its id; None for one of a single turn, whose conversation comes with the request. Such a session needs a
            context in memory.
        approvals: Asks the person; None if the protocol has no way to ask, and what would be asked is denied.
        is_resumed: A session of this id existed before.
        directory: Where it works, if the client says so, as editors do.
        servers: The client's MCP servers by name, as in the configuration of tool-mcp.
    """

    session_id: str | None = None
    approvals: ApprovalSystem | None = None
    is_resumed: bool = False
    directory: Path | None = None
    servers: dict[str, dict[str, Any]] = attrs.field(factory=dict)


SessionFactory: TypeAlias = Callable[[SessionRequest], AmplifierSession]
"""Makes a session, which the server opens and closes."""

SessionCheck: TypeAlias = Callable[[AmplifierSession], None]
"""Raises if a session that has just been opened cannot be used."""


def require_provider(session: AmplifierSession) -> None:
    """The check of a server that was given none."""
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
    """Write down what listings show of a session, see `SessionRecord.used`."""
    if index is None:
        return

    def write() -> None:
        record = index.record(session_id)
        record = record if title is None else attrs.evolve(record, title=title)
        index.write(record.used(status, prompt=prompt))

    await run_sync(write)


# ── commands of the user's own: texts for the model, with a name that stands for them ──
# One may begin with a head, between two lines ``---``, whose ``description`` is what people are shown; the model is not given the head.

_ARGUMENTS: Final = "$ARGUMENTS"
_HEAD: Final = re.compile(r"---\n(.*?)^---\s*?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_DESCRIPTION: Final = re.compile(r"""^description:\s*(["']?)(.+?)\1\s*$""", re.MULTILINE)


def summary(text: str) -> str:
    """A command in a few words: the description in its head, else its first line."""
    head = _HEAD.match(text)
    described = None if head is None else _DESCRIPTION.search(head[1])
    first = _body(text).partition("\n")[0].lstrip("# ")
    return visible_text(first if described is None else described[2], multiline=False)


def takes_input(text: str) -> bool:
    """Whether a command says where its arguments go."""
    return _ARGUMENTS in text


def expanded(text: str, argument: str) -> str:
    """What a command with this argument stands for."""
    body = _body(text)
    return (
        body.replace(_ARGUMENTS, argument) if takes_input(body) else f"{body}\n\n{argument}".strip()
    )


def _body(text: str) -> str:
    head = _HEAD.match(text)
    return (text if head is None else text[head.end() :]).strip()
