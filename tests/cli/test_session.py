"""`amplifier session`: list, show, fork and delete what was kept, and the folder it is kept in."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
from typing import Any

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._internal.json import visible_text
from amplifier.cli import main
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import SessionStore, find_home
from amplifier.store import Conversation, SessionRecord, encode_message
from amplifier.store._tables import open_sessions
from amplifier.tracing.sessions import heading_of_message, text_of_message
from tests._support.terminal import open_terminal, run_cli
from tests.tracing._logs import model_call

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_call", "id": "c1", "name": "read_file", "input": {"file_path": "a"}},
        ],
        "tool_calls": [
            {"id": "c1", "name": "read_file", "tool": "read_file", "arguments": {"file_path": "a"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "secret\x1b[2J"},
    {"role": "assistant", "content": "found it"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "gone"},
]


@pytest.fixture
def store(tmp_path, monkeypatch) -> SessionStore:
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    return SessionStore(tmp_path / "home" / "sessions")


def keep(store: SessionStore, session_id: str, **known: str) -> None:
    write_messages(store, session_id)
    store.write(SessionRecord(session_id=session_id, **known))


def write_messages(store: SessionStore, session_id: str, *messages: dict[str, Any]) -> None:
    conversation = Conversation(store.folder(session_id), session_id)
    conversation.open()
    conversation.replace([encode_message(message)[0] for message in messages or MESSAGES])
    conversation.close()


def damage(store: SessionStore, statement: str) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute(statement)
    other.close()


def test_sessions_are_listed_latest_first(store, cli):
    keep(
        store,
        "older",
        updated="2026-01-01T00:00:00+00:00",
        title="one",
        status="success",
        provider="provider-x",
        directory="/src",
    )
    keep(store, "newer", updated="2026-01-02T00:00:00+00:00", title="two\x1b[31m")
    lines = [line.split("\t") for line in cli("session", "list").out.splitlines()]
    assert lines == [
        ["newer", "2026-01-02T00:00:00+00:00", "", "", "two\\x1b[31m", ""],
        ["older", "2026-01-01T00:00:00+00:00", "success", "provider-x", "one", "/src"],
    ]
    assert [
        record["session_id"]
        for record in json.loads(cli("session", "list", "-n", "1", "--json").out)
    ] == ["newer"]


def test_list_shows_session_costs(store, cli):
    keep(store, "free", updated="2026-01-01T00:00:00+00:00")
    keep(store, "paid", updated="2026-01-02T00:00:00+00:00")
    calls = [*model_call(0.0, 1.0, "paid"), *model_call(2.0, 1.0, "paid", cost="0.02")]
    (store.folder("paid") / "events.jsonl").write_bytes(b"".join(calls))
    lines = [line.split("\t") for line in cli("session", "list", "--cost").out.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [("paid", "0.03"), ("free", "")]
    assert [
        record["cost"] for record in json.loads(cli("session", "list", "--cost", "--json").out)
    ] == ["0.03", None]


def test_sessions_are_searched_and_filtered_by_folder(store, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    keep(store, "one", title="Fix the Parser", directory=str(tmp_path))
    keep(store, "two", title="write docs", directory="/elsewhere", provider="provider-x")

    def listed(*options: str) -> list[str]:
        return [line.split("\t")[0] for line in cli("session", "list", *options).out.splitlines()]

    assert listed("--search", "parser") == ["one"]
    assert listed("-s", "provider-X") == ["two"]
    assert listed("--here") == ["one"]
    assert listed("--here", "-s", "docs") == []


@pytest.mark.parametrize("columns", [80, 40])
def test_list_fits_terminal(columns, store, tmp_path):
    known = {
        "title": "Fix the parser of plans " * 3,
        "directory": f"{tmp_path}/a/long/folder/name",
        "status": "success",
    }
    for name in ("20260101-000000-abcdef", "20260101-000000-abcdee"):
        keep(
            store,
            name,
            provider="provider-openai-compatible",
            updated="2026-01-01T23:30:00+00:00",
            **known,
        )
    with open_terminal(
        "session", "list", home=tmp_path / "home", cwd=tmp_path, size=(24, columns)
    ) as terminal:
        assert terminal.end() == 0
        assert all(len(row) <= columns for row in terminal.rows)
        second, first = terminal.rows[1:]  # one line for each
        assert first.startswith("20260101-000000-abcdef")
        assert "Fix the " in first
        assert second.startswith("20260101-000000-abcdee")


def test_session_export_as_markdown_and_page(store, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    keep(store, "one", title="first")
    written = cli("session", "export", "one").out
    assert written.startswith("# first\n\n## user\n\nfirst\n")
    assert "## tool (read_file)\n\n```\nsecret\\x1b[2J\n```" in written
    cli("session", "export", "one", "-o", "talk.html")
    assert "<h2>user</h2>" in (tmp_path / "talk.html").read_text()
    refused = cli("session", "export", "one", "-o", "talk.html", code=2)
    assert "talk.html: File exists" in refused.err


def test_session_is_written_as_test(store, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    keep(store, "one", title="first")
    assert cli("session", "to-test", "one", "-o", "checks").out == "checks/test_session_one.py\n"
    compile((tmp_path / "checks" / "test_session_one.py").read_text(), "test", "exec")
    assert "first" in (tmp_path / "checks" / "test_session_one.json").read_text()
    cli("session", "to-test", "one", "-o", "checks", code=2)  # nothing is replaced


def test_resumed_chat_begins_with_recap(store, tmp_path):
    keep(store, "one", title="first", provider="provider-offline", directory=str(tmp_path))
    with open_terminal("run", "--resume", "one", home=tmp_path / "home", cwd=tmp_path) as terminal:
        terminal.expect("You asked last: second", "The last answer: gone")
        terminal.leave("\x04")


def test_session_times_are_local(store, tmp_path, monkeypatch):
    keep(store, "one", updated="2026-01-01T23:30:00+00:00", provider="provider-offline")
    keep(store, "two", updated="0001-01-01T00:00:00+23:00")
    keep(store, "three", updated="some day")
    monkeypatch.setenv("TZ", "XYZ-2")  # two hours east of Greenwich
    with open_terminal("session", "list", home=tmp_path / "home", cwd=tmp_path) as terminal:
        shown = terminal.expect("2026-01-02 01:30")
        assert terminal.end() == 0
        assert "0001-01-01T00:00:00+23:00" in terminal.text
        assert "some day" in terminal.text
        assert "+00:00" not in shown + terminal.text
        assert "provider-offline" not in terminal.text


def test_full_disk_error_names_session_file(store):
    keep(store, "one")
    database = open_sessions(store.root)  # shared with the store
    assert database._connection is not None
    database._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(OSError, match="No space left on device") as caught:
        store.write(SessionRecord(session_id="one", title="x" * 100_000))
    database.close()
    assert caught.value.filename == str(store.path)
    assert store.record("one").title is None


def test_empty_home_has_no_sessions(store, cli):
    captured = cli("session", "list")
    assert (captured.out, "no session yet" in captured.err) == ("", True)
    assert not store.root.exists()


def test_conversation_is_shown_without_escapes(store, cli):
    keep(store, "one", title="first", directory="somewhere")
    shown = cli("session", "show", "one").out
    assert "── tool (read_file)\nsecret\\x1b[2J" in shown
    assert 'I look.\n→ read_file {"file_path": "a"}' in shown
    assert json.loads(cli("session", "show", "on", "--json").out)["messages"] == MESSAGES


LINES = [f"line {number}" for number in range(1, 219)]

SHOWN: dict[str, tuple[dict[str, Any], str, str]] = {
    "text as it is": ({"role": "user", "content": "one\n\n  two"}, "── user\none\n\n  two", ""),
    "thinking": (
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm\x07\nyes", "signature": "x"}],
        },
        "── assistant\n[thinking]\n│ hm\\x07\n│ yes",
        "",
    ),
    "reasoning": (
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "content": [], "summary": [{"text": "so"}, "then"]}],
        },
        "[thinking]\n│ so\n│ then",
        "",
    ),
    "encrypted thinking": (
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "abc"}]},
        "[thinking, encrypted by the provider]",
        "",
    ),
    "a long call": (
        {
            "role": "assistant",
            "content": [
                {"type": "tool_call", "id": "1", "name": "write", "input": {"c": "é\n" * 99}}
            ],
        },
        '→ write {"c": "' + "é\\n" * 37 + "é\\…\n",
        '→ write {"c": "' + "é\\n" * 99 + '"}\n',
    ),
    "a call beside the content": (
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "1", "name": "ls", "arguments": {"p": "."}}],
        },
        'I look.\n→ ls {"p": "."}',
        "",
    ),
    "a short output": (
        {"role": "tool", "name": "ls", "content": "a\nb"},
        "── tool (ls)\na\nb\n",
        "",
    ),
    "many lines": (
        {"role": "tool", "name": "cat", "content": "\n".join(LINES)},
        "── tool (cat)\n"
        + "\n".join(LINES[:6])
        + "\n… 212 more lines, 1.8 KiB; --full shows everything\n",
        "\n".join(LINES),
    ),
    "one more line": (
        {"role": "tool", "content": "\n" * 7},
        "… 1 more line, 7 bytes; --full shows everything",
        "\n" * 8,
    ),
    "a long line": (
        {"role": "tool", "content": "x" * 3 * 1024 * 1024},
        f"\n{'x' * 200}…\n… long lines cut, 3.0 MiB; --full shows everything\n",
        "x" * 3 * 1024 * 1024,
    ),
    "an output that is no text": (
        {"role": "tool", "content": {"a": [1]}},
        '{\n  "a": [\n    1\n  ]\n}',
        "",
    ),
    "an output in blocks": (
        {
            "role": "tool",
            "content": [{"type": "text", "text": "seen"}, {"type": "image", "source": {}}],
        },
        "seen\n[image]",
        "",
    ),
    "a result in a block": (
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_call_id": "1", "output": "\n".join(LINES)}],
        },
        "line 6\n… 212 more lines",
        "line 218",
    ),
    "a block of another kind": (
        {"role": "user", "content": [{"type": "im\x1bage"}]},
        "[im\\x1bage]",
        "",
    ),
    "nothing": ({"role": "assistant", "content": None}, "── assistant\n\n", ""),
}


@pytest.mark.parametrize("name", SHOWN)
def test_message_is_readable_and_full_on_request(name, store, cli):
    message, shortened, complete = SHOWN[name]
    write_messages(store, "one", message)
    assert shortened in cli("session", "show", "one").out
    shown = cli("session", "show", "one", "--full").out
    assert (complete or shortened) in shown
    assert "--full shows everything" not in shown or not complete
    assert json.loads(cli("session", "show", "one", "--json").out)["messages"] == [message]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool", "system", "\x1b"])},
            optional={
                "name": st.text(max_size=4) | st.none(),
                "content": st.recursive(
                    st.none() | st.booleans() | st.text(max_size=8),
                    lambda inner: (
                        st.lists(inner, max_size=3)
                        | st.dictionaries(
                            st.sampled_from(
                                ["type", "text", "thinking", "output", "input", "content"]
                            ),
                            inner,
                        )
                    ),
                    max_leaves=8,
                ),
                "tool_calls": st.none()
                | st.lists(
                    st.none() | st.dictionaries(st.sampled_from(["name", "arguments"]), st.text())
                ),
            },
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_stored_messages_never_break_text(messages, full):
    for message in messages:
        shown = f"{heading_of_message(message)}\n{text_of_message(message, full=full)}"
        assert shown == visible_text(shown)


@pytest.mark.parametrize(
    "words", [["show"], ["show", "--json"], ["fork"], ["fork", "--turns", "1"]]
)
def test_damaged_conversation_error_names_file(words, store, cli):
    """It hides no other session."""
    keep(store, "torn")
    keep(store, "whole")
    damage(store, "DELETE FROM messages WHERE session = 1 AND position = 2")
    assert (
        f"{store.path}: message 3 of a conversation is missing"
        in cli("session", words[0], "torn", *words[1:], code=2).err
    )
    assert cli("session", "list").out.count("\n") == 2
    cli("session", "show", "whole")


@pytest.mark.parametrize(("turns", "kept"), [(None, 6), ("0", 0), ("1", 4), ("2", 6), ("9", 6)])
def test_fork_copies_first_turns_independently(turns, kept, store, cli):
    keep(store, "origin", title="first", provider="provider-x")
    printed = cli("session", "fork", "origin", *([] if turns is None else ["--turns", turns]))
    new, more = (
        printed.out.strip(),
        "session 'origin' has only 2 turns; all of them are copied\n",
    )
    assert printed.err == (more if turns == "9" else "")
    assert new != "origin"
    assert store.transcript(new) == MESSAGES[:kept]
    assert store.transcript("origin") == MESSAGES
    record = store.record(new)
    assert (record.forked_from, record.title, record.provider) == ("origin", "first", "provider-x")


def test_deleting_needs_yes_and_leaves_nothing(store, cli):
    keep(store, "gone")
    keep(store, "kept")
    assert "confirm with --yes" in cli("session", "delete", "gone", code=2).err
    assert cli("session", "delete", "gone", "gone", "--yes").out == "deleted gone\n"
    assert sorted(os.listdir(store.root)) == ["kept", "store.db"]


def test_wrong_name_prevents_every_deletion(store, capsys):
    keep(store, "kept")
    assert main(["session", "delete", "kept", "nothing", "--yes"]) == 2
    assert store.exists("kept")


def test_home_is_variable_or_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "mine"))
    assert find_home() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPLIFIER_HOME", "mine")
    assert find_home() == tmp_path / "mine"
    monkeypatch.setenv("AMPLIFIER_HOME", " ")
    assert find_home() == platformdirs.user_state_path("amplifier", appauthor=False)


# ── the store ────────────────────────────────────────────────────────────────────────────────────


def test_session_is_found_by_id_or_prefix(store):
    """The last one has a name of its own."""
    keep(store, "alpha-1", updated="2026-01-01T00:00:00+00:00")
    keep(store, "alpha-2", updated="2026-01-02T00:00:00+00:00")
    keep(store, "beta", updated="2026-01-01T12:00:00+00:00")
    assert store.find("alpha-1").session_id == "alpha-1"
    assert store.find("b").session_id == "beta"
    assert store.find("last").session_id == "alpha-2"
    with pytest.raises(
        CommandError, match="'alpha' is the beginning of 2 session ids: alpha-1, alpha-2"
    ):
        store.find("alpha")
    with pytest.raises(CommandError, match="did you mean 'beta'"):
        store.find("btea")
    for hopeless in ("", "..", "../beta", "zzz"):
        with pytest.raises(CommandError, match="no session"):
            store.find(hopeless)


def test_last_session_within_same_second(store):
    second = "2026-01-01T00:00:00+00:00"
    for session_id in ["c", "a", "b"]:
        keep(store, session_id, updated=second)
    assert [record.session_id for record in store.records()] == ["b", "a", "c"]
    assert store.find("last").session_id == "b"


def test_metadata_is_private_and_replaced(store):
    keep(store, "one", title="a")
    store.write(SessionRecord(session_id="one", title="b"))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder("one").stat().st_mode) == 0o700
    assert store.record("one").title == "b"


def test_deleted_data_leaves_file(store):
    keep(store, "gone", title="a title to forget")
    assert b"a title to forget" in store.path.read_bytes()
    store.delete("gone")
    left = store.path.read_bytes()
    assert b"a title to forget" not in left
    assert b"read_file" not in left


def test_damaged_metadata_hides_no_session(store):
    keep(store, "one")
    damage(store, "UPDATE sessions SET title = 7, updated = NULL, client = '{', turn_plan = '[]'")
    record = store.record("one")
    assert (record.session_id, record.title) == ("one", "7")  # the column is text
    assert record.updated is not None
    assert (store.metadata("one"), store.turn_plan("one")) == ({}, None)
    assert [each.session_id for each in store.records()] == ["one"]


def test_other_files_in_folder_are_ignored(store):
    keep(store, "one")
    (store.root / "note.txt").touch()
    (store.root / ".deleted-x").mkdir()
    (store.root / "empty").mkdir()
    assert [record.session_id for record in store.records()] == ["one"]


def test_delegated_sessions_belong_to_their_parent(store, cli):
    child = "one-0123456789abcdef_explorer"
    keep(store, "one")
    write_messages(store, child)
    assert [record.session_id for record in store.records()] == ["one"]
    assert store.find("last").session_id == "one"
    assert store.find(child).session_id == child
    assert {
        record["session_id"] for record in json.loads(cli("session", "list", "--all", "--json").out)
    } == {
        "one",
        child,
    }
    store.delete("one")
    assert os.listdir(store.root) == ["store.db"]
    write_messages(store, child)  # whoever has lost its parent is listed
    assert [record.session_id for record in store.records()] == [child]


def test_new_ids_sort_by_time_and_differ(store):
    ids = [store.new_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert [each[:15] for each in ids] == sorted(each[:15] for each in ids)


# ── files that are none, and files that were cut ──

FILES = ["events.jsonl", "lock"]
KINDS = {"fifo": "a FIFO", "socket": "a socket", "device": "a device", "directory": "a directory"}


def put_irregular(path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        before = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path.name)
        finally:
            os.chdir(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_irregular_session_file_is_refused(name, kind, store, cli):
    keep(store, "whole", updated="2026-01-01T00:00:00+00:00", title="other")
    keep(store, "strange", updated="2026-01-02T00:00:00+00:00", status="running")
    put_irregular(store.folder("strange") / name, kind)
    assert cli("session", "list").out.count("\n") == 2
    for words in (
        ["show", "strange"],
        ["resume", "strange", "hello"],
        ["resume", "strange"],
        ["trace", "strange"],
    ):
        assert (
            f"{store.folder('strange') / name} is {KINDS[kind]}, expected a regular file"
            in cli("session", *words, code=2).err
        )
    cli("session", "show", "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "strange/lock"])
def test_fifo_instead_of_file_is_never_awaited(name, home, workdir):
    """In processes of their own: to open one that no one writes to would wait for ever."""
    store = SessionStore(home / "sessions")
    keep(store, "strange")
    put_irregular(store.root / name, "fifo")
    for words, code in (
        ("list", 0 if name == "strange/lock" else 2),
        ("show strange", 2),
        ("resume last hello", 2),
    ):
        finished = run_cli("session", *words.split(), home=home, cwd=workdir)
        assert finished.returncode == code, finished.stderr


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_emptied_store_is_reported_not_resumed(left, home, workdir, plan):
    store = SessionStore(home / "sessions")
    keep(store, "cut")
    cut = store.path.read_bytes()[:left]
    store.path.write_bytes(cut)
    for words in (["show", "cut"], ["list"], ["resume", "cut", "say hello", "--plan", plan]):
        refused = run_cli("session", *words, home=home, cwd=workdir)
        assert refused.returncode != 0
        assert f"{store.path}: " in refused.stderr
        assert "restore it from a backup" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert store.path.read_bytes() == cut
