"""The state folder of the command line, and the sessions stored in it."""

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
    """Return the user's configuration folder, by default the system's standard one."""
    return find_home("user_config_path")


def find_home(kind: str = "user_state_path") -> Path:
    """Return the folder named in AMPLIFIER_HOME, or the system's standard one.

    It is not created.
    """
    configured = os.environ.get(HOME_VARIABLE, "").strip()
    if configured:
        return Path(configured).expanduser().absolute()
    try:
        # platformdirs belongs to an extra, and isn't needed if the variable is set.
        import platformdirs  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "finding the state folder", extra="cli", missing="platformdirs"
        ) from error
    folder: Path = getattr(platformdirs, kind)("amplifier", appauthor=False)
    return folder


def running_folder() -> Path:
    """Return the folder for the files of running commands."""
    return find_home() / "running"


def require_writable(sessions: Path) -> None:
    """Check that sessions can be stored in a folder, without leaving anything behind.

    Raises:
        CommandError: The folder isn't writable. The message names it and the variable that sets it.
    """
    nearest = next(folder for folder in (sessions, *sessions.parents) if folder.exists())
    # Try to write, because permissions are misleading: root seems to have all of them in /proc.
    try:
        Path(tempfile.mkdtemp(prefix=".amplifier-", dir=nearest)).rmdir()
    except OSError as error:
        reason = f"{nearest} is not a folder"
        if nearest.is_dir():
            reason = f"nothing can be created in {nearest} ({error.strerror or error})"
        raise CommandError(
            f"sessions cannot be kept in {sessions}: {reason}; "
            f"set {HOME_VARIABLE} to a folder that you can write to"
        ) from error


LAST = "last"
"""Name of the session that was used last."""


class SessionStore(SessionIndex):
    """The stored sessions of this user, see `SessionIndex`.

    Attributes:
        begun: Records of open sessions that have had no turn, and so aren't in the index yet.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun: dict[str, SessionRecord] = {}

    def record(self, session_id: str) -> SessionRecord:
        """Return the metadata of a session. It is empty for an unknown session."""
        return self.begun.get(session_id) or super().record(session_id)

    def write(self, record: SessionRecord, **values: Mapping[str, Any] | None) -> None:
        """Write the metadata of a session, and ``turn_plan`` if it is passed."""
        super().write(record, **values)
        self.begun.pop(record.session_id, None)

    def keep_report(self, module: str, verdict: str, text: str) -> None:
        """Store the latest conformance report on a module, for the page that lists them.

        Raises:
            OSError: The file can't be written.
        """
        folder = self.root.parent / "reports"
        make_folders(folder)
        report = {"module": module, "verdict": verdict, "checked": now(), "text": text}
        replace_file(folder / f"{quote(module, safe='')[:200]}.json", json.dumps(report).encode())

    def reports(self) -> list[dict[str, Any]]:
        """Return the stored reports, newest first, without unreadable ones."""
        keys = ("module", "verdict", "checked", "text")
        reports = list[dict[str, Any]]()
        for file in (self.root.parent / "reports").glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                content = json.loads(read_file(file, most=1 << 20))
                reports.append({key: str(content[key]) for key in keys})
        return sorted(reports, key=lambda report: report["checked"], reverse=True)

    def holder(self, session_id: str) -> str:
        """Return a phrase about the process that has a session open, or an empty text."""
        holder = lock_holder(self.folder(session_id))
        return "" if holder is None else f" ({holder.partition(' on ')[0]})"

    def records(self, *, with_children: bool = False) -> list[SessionRecord]:
        """Return all sessions, the latest first. Delegated tasks belong to their parent."""
        nearest = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not nearest.is_dir():
            require_writable(self.root)
        return super().records(with_children=with_children)

    def find(self, wanted: str) -> SessionRecord:
        """Return the session for an id, a unique prefix of an id, or ``last``.

        Raises:
            CommandError: There is no such session, or there are several, which the message lists,
                or one of the session's files isn't a regular file.
        """
        names = self.names()
        if wanted == LAST and LAST not in names:
            if not (records := self.records()):
                raise CommandError(
                    f"there is no session yet in {self.root}; begin one with: amplifier run"
                )
            wanted = records[0].session_id
        matches = [name for name in names if wanted and name.startswith(wanted)]
        if wanted in names:
            matches = [wanted]
        if len(matches) == 1:
            _require_regular_files(self.folder(matches[0]))
            return self.record(matches[0])
        if matches:
            listed = ", ".join(matches[:5])
            raise CommandError(
                f"{wanted!r} is the beginning of {len(matches)} session ids: {listed}"
            )
        near = nearest(wanted, names, cutoff=0.5)
        advice = f"{did_you_mean(near)} " if near else ""
        raise CommandError(
            f"no session {wanted!r} in {self.root}; "
            f"{advice}`amplifier session list` shows all of them"
        )

    # ── writing ──

    def copy(self, origin: SessionRecord, messages: Sequence[dict[str, Any]]) -> str:
        """Store messages as a new session that was forked from another one. Return its id."""
        new_id = self.new_id()
        conversation = Conversation(self.folder(new_id), new_id)
        conversation.open()
        try:
            conversation.replace([encode_message(message)[0] for message in messages])
        finally:
            conversation.close()
        changes = {
            "created": now(),
            "updated": now(),
            "status": None,
            "forked_from": origin.session_id,
        }
        self.write(attrs.evolve(origin, session_id=new_id, **changes))
        return new_id

    def delete(self, session_id: str) -> None:
        """Delete a session with its data and the sessions of its delegated tasks.

        Raises:
            CommandError: The session is open in another process.
            OSError: A file can't be removed.
        """
        try:
            super().delete(session_id)
            self.begun.pop(session_id, None)
        except SessionLockedError:
            who = self.holder(session_id)
            raise CommandError(
                f"session {session_id!r} is open in another process{who}; end that one first"
            ) from None


def _require_regular_files(folder: Path) -> None:
    """Check the files of a session before anything opens them.

    Raises:
        CommandError: A file is a FIFO, a socket, a device or a directory.
    """
    for name in (EVENTS_FILE, "lock"):
        # If a file is missing or unreadable, its reader reports the error.
        with suppress(OSError):
            kind = irregular_kind((folder / name).stat().st_mode)
            if kind is not None:
                raise CommandError(
                    f"{folder / name} is {kind}, expected a regular file; "
                    "move it away, or delete the session's folder"
                )
