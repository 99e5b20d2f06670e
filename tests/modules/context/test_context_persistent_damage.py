"""A store after a crash or a bad disk: a transaction that was never acknowledged is gone, damage is reported, nothing is invented or skipped."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier.store import (
    Conversation,
    SessionIndex,
    SessionRecord,
    StoreDamagedError,
    encode_message,
)
from tests.modules.context.test_context_persistent import stored

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first {\n}"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look"}]},
    {"role": "tool", "tool_call_id": "1", "content": "ü" * 3000},
    {"role": "assistant", "content": "done"},
]
NEXT = {"role": "user", "content": "next"}

RUBBISH = random.Random(7).randbytes(100_000)
TAILS: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda whole, at: whole[:at],
    "zeros": lambda whole, at: whole[:at] + bytes(len(whole) - at),
    "rubbish": lambda whole, at: whole[:at] + RUBBISH[: len(whole) - at],
    "hole": lambda whole, at: (
        whole[:at] + bytes(byte ^ 0x55 for byte in whole[at : at + 8]) + whole[at + 8 :]
    ),
}


def text(message: dict[str, Any]) -> str:
    return encode_message(message)[0]


def write(root: Path) -> None:
    """A store that was closed."""
    for session_id in ("before", "s", "behind"):
        conversation = Conversation(root / session_id, session_id)
        conversation.open()
        conversation.append([text(message) for message in MESSAGES])
        conversation.close()


def written_and_killed(folder: Path) -> tuple[Path, list[int]]:
    """What a killed process leaves: a file, and the log in which everything is; with the length of the log after each message."""
    working, image = folder / "working", folder / "image"
    conversation = Conversation(working / "s", "s")
    conversation.open()
    lengths = []
    for message in MESSAGES:
        conversation.append([text(message)])
        lengths.append((working / "store.db-wal").stat().st_size)
    shutil.copytree(working, image, ignore=shutil.ignore_patterns("*-shm"))
    conversation.close()
    return image, lengths


@pytest.mark.parametrize("tail", TAILS)
def test_torn_log_keeps_acknowledged_or_is_reported(tail, tmp_path):
    image, lengths = written_and_killed(tmp_path)
    whole = (image / "store.db-wal").read_bytes()
    assert len(whole) == lengths[-1]
    reported = 0
    places = sorted(
        {
            *range(lengths[0], len(whole), 2003),
            *(length + more for length in lengths[:-1] for more in (0, 5, 30)),
        }
    )
    for number, at in enumerate(places):
        root = tmp_path / str(number)
        shutil.copytree(image, root)
        torn = TAILS[tail](whole, at)
        (root / "store.db-wal").write_bytes(torn)
        before = sum(torn[:length] == whole[:length] for length in lengths)
        try:
            found = stored(root)
        except StoreDamagedError as error:
            reported += 1
            assert tail == "hole", f"a torn end at byte {at} was taken for damage"
            assert error.path == root / "store.db-wal"  # noqa: PT017 - other places raise nothing
            with pytest.raises(StoreDamagedError, match="transactions are behind the damage"):
                stored(root)  # nothing was tidied away
            continue
        assert found == MESSAGES[:before], f"torn at byte {at}"
        conversation = Conversation(root / "s", "s")
        conversation.open()
        conversation.append([text(NEXT)])
        conversation.close()
        assert stored(root) == [*MESSAGES[:before], NEXT]
    assert (reported > 0) == (tail == "hole")


def test_log_with_wrong_header_is_reported(tmp_path):
    image, _ = written_and_killed(tmp_path)
    whole = (image / "store.db-wal").read_bytes()
    for at in range(32):
        (image / "store.db-wal").write_bytes(TAILS["hole"](whole, at))
        with pytest.raises(StoreDamagedError, match=r"store\.db-wal: it is damaged"):
            stored(image)
    (image / "store.db-wal").write_bytes(whole)
    assert stored(image) == MESSAGES


@pytest.mark.parametrize("flip", [1, 0x20, 0xFF])
def test_changed_byte_is_reported_or_harmless(flip, tmp_path):
    write(tmp_path / "whole")
    whole = (tmp_path / "whole" / "store.db").read_bytes()
    root = tmp_path / "root"
    reported = 0
    used = [at for at in range(0, len(whole), 3) if whole[at : at + 3] != bytes(3)]
    for at in used[:: max(1, len(used) // 150)]:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", root)
        image = bytearray(whole)
        image[at] ^= flip
        (root / "store.db").write_bytes(image)
        try:
            assert stored(root) == MESSAGES, f"byte {at}"
        except StoreDamagedError as error:
            reported += 1
            assert str(error).startswith(str(root / "store.db"))  # noqa: PT017 - other bytes raise nothing
            assert (root / "store.db").read_bytes() == bytes(image)
    assert reported > 20


@pytest.mark.parametrize("kept", [0, 1, 50, 100, 4095, 4096, 8192, -4096])
def test_truncated_file_is_reported(kept, tmp_path):
    write(tmp_path)
    file = tmp_path / "store.db"
    cut = file.read_bytes()[:kept]
    file.write_bytes(cut)
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=r"store\.db: "):
            stored(tmp_path)
        with pytest.raises(StoreDamagedError, match=r"store\.db: "):
            SessionIndex(tmp_path).write(SessionRecord(session_id="new"))
    assert file.read_bytes() == cut


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "DELETE FROM messages WHERE session = 2 AND position = 1",
            "message 2 of a conversation is missing",
        ),
        (
            "DELETE FROM messages WHERE session = 2 AND position = 3",
            "it has 3 messages of a conversation, and 4 were",
        ),
        (
            "UPDATE messages SET position = 9 WHERE session = 2 AND position = 3",
            "message 4 of a conversation is missing",
        ),
        (
            "UPDATE messages SET body = replace(body, 'first', 'fixed')",
            "message 1 of a conversation is damaged",
        ),
        (
            "UPDATE messages SET body = x'ff' WHERE position = 2",
            "message 3 of a conversation is damaged",
        ),
        (
            "UPDATE messages AS m SET (body, checksum) = (SELECT body, checksum FROM messages WHERE session = 1 AND position = 0)",
            "message 2 of a conversation is damaged",
        ),
        ("UPDATE sessions SET messages = 'many'", "the entry of session 's' is damaged"),
        ("DROP TABLE messages", "no such table: messages"),
        ("PRAGMA user_version = 3", r"it has format 3, expected 2 \(another release wrote it\)"),
        ("PRAGMA application_id = 7", "it is not a store of sessions"),
    ],
)
def test_altered_records_are_reported(change, reason, tmp_path):
    write(tmp_path)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute(change)
    other.close()
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=reason) as caught:
            stored(tmp_path)
        assert caught.value.path == tmp_path / "store.db"


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\0" * 5000, RUBBISH])
def test_foreign_file_is_refused_and_kept(data, tmp_path):
    (tmp_path / "store.db").write_bytes(data)
    with pytest.raises(StoreDamagedError):
        stored(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == data


def test_undecodable_sqlite_error_is_reported(tmp_path):
    """Python raises an error about the bytes instead of SQLite's."""
    write(tmp_path)
    file = tmp_path / "store.db"
    whole = file.read_bytes()
    assert b"WITHOUT ROWID" in whole
    file.write_bytes(whole.replace(b"WITHOUT ROWID", b"WITHOUT\x99ROWID"))
    with pytest.raises(StoreDamagedError, match="SQLite cannot use it"):
        stored(tmp_path)


def test_moved_file_is_reported(tmp_path, caplog):
    """A new conversation begins in its place."""
    write(tmp_path)
    (tmp_path / "store.db").unlink()
    for _ in range(2):
        assert stored(tmp_path) == []
    assert (
        caplog.text.count(
            "session 's' was used before and is no longer there; a new conversation starts"
        )
        == 1
    )
