"""The state folder of the command line, one for all sessions whatever the working directory, and the sessions stored in it: listed, found, deleted.

What is kept is in `amplifier.store`; a session has a folder beside it for its event log (``events.jsonl``, written by hooks-logging) and its lock.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from amplifier._internal.regular_files import irregular_kind, make_folders, read_file, replace_file
from amplifier._internal.spelling import did_you_mean, nearest
from amplifier.cli._exit_codes import CommandError
from amplifier.errors import MissingExtraError
from amplifier.store import (
    Conversation,
    SessionIndex,
    SessionLockedError,
    SessionRecord,
    encode_message,
    lock_holder,
)
from amplifier.store.sessions import EVENTS_FILE, now

HOME_VARIABLE = "AMPLIFIER_HOME"


def config_folder() -> Path:
    """The folder of the user's own files: the one named by AMPLIFIER_HOME, else the configuration folder of this system."""
    return find_home("user_config_path")


def find_home(kind: str = "user_state_path") -> Path:
    """The folder named by AMPLIFIER_HOME, else the user's state folder of this system; it is not created."""
    configured = os.environ.get(HOME_VARIABLE, "").strip()
    if configured:
        return Path(configured).expanduser().absolute()
    try:
        import platformdirs  # noqa: PLC0415  # belongs to an extra; not needed if the variable is set
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "finding the state folder", extra="cli", missing="platformdirs"
        ) from error
    folder: Path = getattr(platformdirs, kind)("amplifier", appauthor=False)
    return folder


def running_folder() -> Path:
    """Has the files of running commands, see `running_commands`."""
    return find_home() / "running"


def require_writable(sessions: Path) -> None:
    """Check that sessions can be stored there, without leaving anything behind.

    Raises:
        CommandError: They cannot; the message names the folder and the variable that chooses it.
    """
    nearest = next(folder for folder in (sessions, *sessions.parents) if folder.exists())
    try:  # permissions do not show it: root seems to have all of them in /proc
        Path(tempfile.mkdtemp(prefix=".amplifier-", dir=nearest)).rmdir()
    except OSError as error:
        refused = f"nothing can be created in {nearest} ({error.strerror or error})"
        raise CommandError(
            f"sessions cannot be kept in {sessions}: {refused if nearest.is_dir() else f'{nearest} is not a folder'}; "
            f"set {HOME_VARIABLE} to a folder that you can write to"
        ) from error


LAST = "last"
"""The name for the session that was used last."""


class SessionStore(SessionIndex):
    """The stored sessions of this user, see `SessionIndex`.

    Attributes:
        begun: Records of sessions that are open and not in the index before their first turn.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun: dict[str, SessionRecord] = {}

    def record(self, session_id: str) -> SessionRecord:
        """The metadata of a session; empty if there is no such session."""
        return self.begun.get(session_id) or super().record(session_id)

    def write(self, record: SessionRecord, **values: Mapping[str, Any] | None) -> None:
        """Write the metadata of a session, and ``turn_plan`` if it is given."""
        super().write(record, **values)
        self.begun.pop(record.session_id, None)

    def keep_report(self, module: str, verdict: str, text: str) -> None:
        """Keep the last conformance report on a module, for the page that lists them.

        Raises:
            OSError: The system refuses.
        """
        folder = self.root.parent / "reports"
        make_folders(folder)
        report = {"module": module, "verdict": verdict, "checked": now(), "text": text}
        replace_file(folder / f"{quote(module, safe='')[:200]}.json", json.dumps(report).encode())

    def reports(self) -> list[dict[str, Any]]:
        """The reports that are kept, the newest first; one that cannot be read is left out."""
        found = list[dict[str, Any]]()
        for file in (self.root.parent / "reports").glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(read_file(file, most=1 << 20))
                found.append(
                    {name: str(kept[name]) for name in ("module", "verdict", "checked", "text")}
                )
        return sorted(found, key=lambda report: report["checked"], reverse=True)

    def holder(self, session_id: str) -> str:
        """The process that has a session open, in words for the middle of a sentence; empty if it is not known."""
        holder = lock_holder(self.folder(session_id))
        return "" if holder is None else f" ({holder.partition(' on ')[0]})"

    def records(self, *, with_children: bool = False) -> list[SessionRecord]:
        """All sessions, the one used last first; those of delegated tasks belong to the one that delegated."""
        nearest = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not nearest.is_dir():
            require_writable(self.root)
        return super().records(with_children=with_children)

    def find(self, wanted: str) -> SessionRecord:
        """The session that an id, a unique beginning of an id, or ``last`` refers to.

        Raises:
            CommandError: It refers to none, or to several, and the message lists candidates; or one of its files is no regular file.
        """
        names = self.names()
        if wanted == LAST and LAST not in names:
            if not (records := self.records()):
                raise CommandError(
                    f"there is no session yet in {self.root}; begin one with: amplifier run"
                )
            wanted = records[0].session_id
        meant = (
            [wanted]
            if wanted in names
            else [name for name in names if wanted and name.startswith(wanted)]
        )
        if len(meant) == 1:
            _refuse_irregular(self.folder(meant[0]))
            return self.record(meant[0])
        if meant:
            raise CommandError(
                f"{wanted!r} is the beginning of {len(meant)} session ids: {', '.join(meant[:5])}"
            )
        near = nearest(wanted, names, cutoff=0.5)
        advice = f"{did_you_mean(near)} " if near else ""
        raise CommandError(
            f"no session {wanted!r} in {self.root}; {advice}`amplifier session list` shows all of them"
        )

    # ── writing ──

    def copy(self, origin: SessionRecord, messages: Sequence[dict[str, Any]]) -> str:
        """Keep messages as a new session that was forked from another one; returns its id."""
        new_id = self.new_id()
        conversation = Conversation(self.folder(new_id), new_id)
        conversation.open()
        try:
            conversation.replace([encode_message(message)[0] for message in messages])
        finally:
            conversation.close()
        described = {
            "created": now(),
            "updated": now(),
            "status": None,
            "forked_from": origin.session_id,
        }
        self.write(attrs.evolve(origin, session_id=new_id, **described))
        return new_id

    def delete(self, session_id: str) -> None:
        """Remove a session and everything it kept, the sessions of its delegated tasks included.

        Raises:
            CommandError: It is open somewhere.
            OSError: The system refuses.
        """
        try:
            super().delete(session_id)
            self.begun.pop(session_id, None)
        except SessionLockedError:
            who = self.holder(session_id)
            raise CommandError(
                f"session {session_id!r} is open in another process{who}; end that one first"
            ) from None


def _refuse_irregular(folder: Path) -> None:
    """Refuse a session with a file that is none, before anything reads it or waits for it.

    Raises:
        CommandError: One is a FIFO, a socket, a device or a directory.
    """
    for name in (EVENTS_FILE, "lock"):
        with suppress(OSError):  # it is not there, or whoever reads it reports it
            kind = irregular_kind((folder / name).stat().st_mode)
            if kind is not None:
                raise CommandError(
                    f"{folder / name} is {kind}, expected a regular file; move it away, or delete the session's folder"
                )
