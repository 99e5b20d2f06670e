"""context-persistent: what is acknowledged is on disk, one session writes, and a resumed conversation is whole."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession, ContextManager, ModelError, PlanError, SessionStateError
from amplifier.modules.context.persistent import PersistentContext, read_persistent_options
from amplifier.store import Conversation, SessionLockedError, StoreDamagedError
from tests.modules.context.test_context_simple import perform, programs, session

USER = {"role": "user", "content": "hello"}


@asynccontextmanager
async def opened(
    root: Path, session_id: str = "s", hooks: Any = None, **config: Any
) -> AsyncIterator[PersistentContext]:
    context = PersistentContext(
        read_persistent_options(session_id, {"path": str(root), **config}), hooks
    )
    try:
        await context.open()
        yield context
    finally:
        await context.close()


def stored(root: Path, session_id: str = "s") -> list[dict[str, Any]]:
    """What the next session would find."""
    conversation = Conversation(root / session_id, session_id)
    try:
        return conversation.open()
    finally:
        conversation.close()


# ── the store ────────────────────────────────────────────────────────────────────────────────────


@given(
    program=st.lists(
        st.one_of(programs().filter(bool).map(lambda p: p[0]), st.just(("reopen", None))),
        min_size=1,
        max_size=8,
    )
)
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_memory_and_file_match_plain_list(tmp_path_factory, program):
    root = tmp_path_factory.mktemp("conversations")
    expected: list[Any] = []
    context = PersistentContext(
        read_persistent_options("s", {"path": root, "resume_policy": "replace"})
    )
    await context.open()
    try:
        for operation, argument in program:
            if operation == "reopen":
                await context.close()
                context = PersistentContext(
                    read_persistent_options("s", {"path": root, "resume_policy": "replace"})
                )
                await context.open()
                # Results that are owed come on top; what was stored before comes first, unchanged.
                assert (await context.get_messages())[: len(expected)] == expected
                expected = await context.get_messages()
            else:
                expected = await perform(context, operation, argument, expected)
            assert await context.get_messages() == expected
            assert context.statistics().messages == len(expected)
    finally:
        await context.close()
    assert stored(root) == expected


async def test_message_is_in_file_after_add_message(tmp_path):
    async with opened(tmp_path) as context:
        assert isinstance(context, ContextManager)
        for number in range(5):
            await context.add_message(
                {"role": "user", "content": f"number {number}\nof 5 — ünïcode 中"}
            )
            other = sqlite3.connect(tmp_path / "store.db")  # as another process sees it
            rows = other.execute("SELECT position, body FROM messages ORDER BY position").fetchall()
            other.close()
            assert [position for position, _ in rows] == list(range(number + 1))
            assert json.loads(rows[-1][1])["content"].startswith(f"number {number}\n")


async def test_disk_write_precedes_acknowledgement(tmp_path):
    async with opened(tmp_path) as context:
        database = context._stored._database
        assert database is not None
        settings = [
            database._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ]
    assert settings == ["wal", 2]  # a commit syncs the log


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "content": float("nan")}, "content: nan is not a JSON number"),
        (
            {"role": "user", "content": [{1: "one"}]},
            r"content\[0\]\[1\]: expected a str as key, got int",
        ),
        (
            {"role": "user", "content": {"x": object()}},
            "content.x: expected a JSON value, got object",
        ),
        ({"role": "user", "content": b"bytes"}, "content: expected a JSON value, got bytes"),
    ],
)
async def test_unserialisable_message_is_refused_with_path(tmp_path, message, problem):
    async with opened(tmp_path) as context:
        with pytest.raises(ModelError, match=problem):
            await context.add_message(message)
        with pytest.raises(ModelError, match=problem):
            await context.set_messages([USER, message])
        assert await context.get_messages() == []
    assert stored(tmp_path) == []


async def test_too_deep_and_circular_messages_are_refused(tmp_path):
    deep: Any = "bottom"
    for _ in range(300):
        deep = [deep]
    circular: dict[str, Any] = {"role": "user"}
    circular["content"] = [circular]
    async with opened(tmp_path) as context:
        with pytest.raises(ModelError, match="deep"):
            await context.add_message({"role": "user", "content": deep})
        with pytest.raises(ModelError, match="contains itself"):
            await context.add_message(circular)
    assert stored(tmp_path) == []


async def test_lone_surrogates_huge_numbers_and_tuples_survive(tmp_path):
    strange = {
        "role": "tool",
        "content": "name \udcff",
        "n": 10**50,
        "f": -0.0,
        "t": (1, (2,)),
        "b": [[1]] * 300,
    }
    async with opened(tmp_path) as context:
        await context.add_message(strange)
        assert await context.get_messages() == [{**strange, "t": [1, [2]]}]
    assert stored(tmp_path) == [{**strange, "t": [1, [2]]}]


# ── replacing ────────────────────────────────────────────────────────────────────────────────────


async def test_resume_ignores_set_messages(
    tmp_path,
):
    """The file is the fuller record."""
    full = [{"role": "system", "content": "be brief"}, USER]
    async with opened(tmp_path) as context:
        await context.set_messages(full)  # a fresh session takes what it is given
    async with opened(tmp_path) as context:
        await context.set_messages([USER])
        assert await context.get_messages() == full
        with pytest.raises(ValueError, match="role"):
            await context.set_messages([{}])
        await context.clear()
        await context.set_messages([USER])  # cleared on purpose: nothing is left to protect
        assert await context.get_messages() == [USER]
    assert stored(tmp_path) == [USER]


async def test_resume_policy_replace_obeys_set_messages(tmp_path):
    async with opened(tmp_path) as context:
        await context.set_messages([{"role": "system", "content": "be brief"}, USER])
    async with opened(tmp_path, resume_policy="replace") as context:
        await context.set_messages([USER])
        assert await context.get_messages() == [USER]
    assert stored(tmp_path) == [USER]


async def test_empty_conversation_is_not_resumed(tmp_path):
    async with opened(tmp_path):
        pass
    async with opened(tmp_path) as context:
        await context.set_messages([USER])
    assert stored(tmp_path) == [USER]


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────

CALLS = {
    "role": "assistant",
    "content": [{"type": "tool_call", "id": "c", "name": "list", "input": {}}],
    "tool_calls": [
        {"id": "a", "name": "look"},
        {"id": "b", "function": {"name": "run"}},
        {"id": "c"},
    ],
}


def result(call: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "done", **more}


@pytest.mark.parametrize(
    ("before", "owed"),
    [
        ([USER, CALLS], [("a", "look"), ("b", "run"), ("c", None)]),
        ([USER, CALLS, result("b")], [("a", "look"), ("c", None)]),
        (
            [USER, CALLS, result("a"), {"role": "user", "content": "injected"}],
            [("b", "run"), ("c", None)],
        ),
        ([USER, CALLS, result("a"), result("b"), result("c")], []),
        ([CALLS, {"role": "assistant", "content": "an old gap is left to those who made it"}], []),
        ([USER], []),
        ([], []),
    ],
)
async def test_crashed_calls_get_recorded_results(tmp_path, before, owed):
    async with opened(tmp_path) as context:
        for message in before:
            await context.add_message(message)
    async with opened(tmp_path) as context:
        after = await context.get_messages()
        assert after[: len(before)] == before
        notes = after[len(before) :]
        assert [(note["tool_call_id"], note.get("name")) for note in notes] == owed
        assert all(
            note["role"] == "tool" and note["content"].startswith("[interrupted") for note in notes
        )
        assert await context.get_messages_for_request() == after
    assert stored(tmp_path) == after


# ── one writer ───────────────────────────────────────────────────────────────────────────────────


async def test_second_writer_is_refused_until_close(tmp_path):
    async with opened(tmp_path) as first:
        await first.add_message(USER)
        refused = f"another session has this conversation open .process {os.getpid()} on "
        with pytest.raises(SessionLockedError, match=refused) as caught:
            async with opened(tmp_path):
                pass
        assert caught.value.path == tmp_path / "s"
        async with opened(tmp_path, "another session's"[:7]) as other:
            assert await other.get_messages() == []
        await first.add_message(USER)
    async with opened(tmp_path) as second:
        assert await second.get_messages() == [USER, USER]


async def test_closed_context_is_readable_not_writable(tmp_path):
    async with opened(tmp_path) as context:
        await context.add_message(USER)
    await context.close()
    assert repr(context).endswith("closed with 1 messages>")
    for call in (context.add_message(USER), context.clear(), context.set_messages([USER])):
        with pytest.raises(SessionStateError, match="nothing can be stored"):
            await call
    assert await context.get_messages() == [USER]
    assert stored(tmp_path) == [USER]


async def test_externally_changed_conversation_is_not_written(tmp_path):
    file = tmp_path / "store.db"
    async with opened(tmp_path) as context:
        await context.add_message(USER)
        other = sqlite3.connect(file)
        for change in (
            "INSERT INTO messages VALUES (1, 1, 0, '{}')",
            "DELETE FROM messages WHERE position = 1",
            "UPDATE sessions SET messages = 7",
        ):
            with other:
                other.execute(change)
            if change.startswith("DELETE"):
                continue
            with pytest.raises(StoreDamagedError, match="another process changed the conversation"):
                await context.add_message(USER)
        other.close()
        file.unlink()
        with pytest.raises(StoreDamagedError, match="it was removed or replaced while it was open"):
            await context.add_message(USER)
        assert await context.get_messages() == [USER]


# ── where ────────────────────────────────────────────────────────────────────────────────────────


async def test_files_and_folders_are_private_to_owner(tmp_path):
    def modes() -> dict[str, int]:
        found = tmp_path.rglob("*")
        return {
            path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
            for path in found
        }

    async with opened(tmp_path / "new" / "folders") as context:
        await context.add_message(USER)
        await context.clear()
        while_open = modes()
    kept = {
        "new": 0o700,
        "new/folders": 0o700,
        "new/folders/s": 0o700,
        "new/folders/s/lock": 0o600,
        "new/folders/store.db": 0o600,
    }
    assert modes() == kept
    assert while_open == {
        **kept,
        "new/folders/store.db-wal": 0o600,
        "new/folders/store.db-shm": 0o600,
    }


@pytest.mark.parametrize(
    "session_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b/",
        "a\0b",
        ".hidden",
        "x" * 201,
        "a b",
        "ä",
        "a\n",
        None,
        7,
        b"a",
    ],
)
def test_session_id_resembling_path_is_refused(session_id, tmp_path):
    with pytest.raises(PlanError, match="session_id: expected 1 to 200 of"):
        read_persistent_options(session_id, {"path": str(tmp_path)})


@pytest.mark.parametrize(
    "name", ["store.db", "store.db-wal", "store.db-shm", "store.db-journal", "s", "s/lock"]
)
async def test_link_instead_of_file_is_not_followed(tmp_path, name):
    if name == "s/lock":
        (tmp_path / "s").mkdir()
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        async with opened(tmp_path):
            pass
    assert target.read_bytes() == b""


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db-shm"])
async def test_pipe_instead_of_file_does_not_hang(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(StoreDamagedError, match=f"{name}: it is not a regular file"):
        async with opened(tmp_path):
            pass


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_STATE_HOME": "/somewhere/state"}, "/somewhere/state/amplifier/sessions/s"),
        ({"XDG_STATE_HOME": "relative"}, "/a/home/.local/state/amplifier/sessions/s"),
        ({"XDG_STATE_HOME": ""}, "/a/home/.local/state/amplifier/sessions/s"),
        ({}, "/a/home/.local/state/amplifier/sessions/s"),
    ],
)
def test_default_folder_belongs_to_user(monkeypatch, environment, expected):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/a/home")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_persistent_options("s", None).folder == Path(expected)
    assert read_persistent_options("s", {"path": "~/x"}).folder == Path("/a/home/x/s")


def test_errors_survive_process_boundary(tmp_path):
    damaged = pickle.loads(pickle.dumps(StoreDamagedError(tmp_path, "broken")))
    assert (damaged.path, damaged.reason) == (tmp_path, "broken")
    assert pickle.loads(pickle.dumps(SessionLockedError(tmp_path))).path == tmp_path


# ── in a session ─────────────────────────────────────────────────────────────────────────────────


def agent(turns: list[Any], root: Path, session_id: str = "s", **options: Any) -> AmplifierSession:
    return session(
        turns, {"path": str(root)}, "context-persistent", session_id=session_id, **options
    )


async def test_resumed_session_remembers(tmp_path):
    async with agent([[("look", {"n": 1})], "done"], tmp_path) as first:
        assert await first.execute("hello") == "done"
    async with agent(["again"], tmp_path, is_resumed=True) as second:
        assert await second.execute("and now?") == "again"
        messages = await second.coordinator.get("context").get_messages()
    assert [m["role"] for m in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert stored(tmp_path) == messages


async def test_forked_process_does_not_hold_lock(tmp_path):
    async with opened(tmp_path):
        end_of_child, ours = os.pipe()
        child = os.fork()
        if (
            child == 0
        ):  # pragma: no cover — it has copies of all descriptors, and waits until the test is over
            os.close(ours)
            os.read(end_of_child, 1)
            os._exit(0)
    try:
        async with opened(tmp_path) as context:
            await context.add_message(USER)
    finally:
        os.close(ours)
        os.close(end_of_child)
        os.waitpid(child, 0)  # noqa: ASYNC222 — it ends at once
    assert stored(tmp_path) == [USER]
