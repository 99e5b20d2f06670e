"""`amplifier session trace`: what it writes for real sessions, and for logs in every state."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli import main
from amplifier.cli._sessions import SessionStore
from amplifier.store import SessionRecord
from amplifier.tracing import log_parts
from tests._support.forked import run_forked
from tests._support.terminal import PATIENCE, command, environment, start
from tests.cli._scripted_agent import call, write_plan
from tests.cli.test_session import keep
from tests.tracing._logs import small_session


@pytest.fixture
def store(home, monkeypatch) -> SessionStore:
    monkeypatch.setenv("AMPLIFIER_HOME", str(home))
    return SessionStore(home / "sessions")


@pytest.fixture
def logging_plan(tmp_path) -> str:
    """The plan of the scripted agent with an event log that is rotated often, and an agent to delegate to."""
    file = write_plan(tmp_path)
    plan = json.loads(file.read_text())
    plan["hooks"].append({"module": "hooks-logging", "config": {"max_bytes": 2000, "keep": 50}})
    plan["tools"].append({"module": "tool-task"})
    plan["agents"] = {"helper": {"description": "Helps.", "instruction": "Help."}}
    file.write_text(json.dumps(plan))
    return str(file)


def write_log(store: SessionStore, session_id: str, *lines: bytes) -> Path:
    store.write(SessionRecord(session_id=session_id))
    path = store.folder(session_id) / "events.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(lines))
    return path


def rows_of(page: str) -> list[dict[str, Any]]:
    """The rows in the data of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    rows: list[dict[str, Any]] = json.loads(found[1])["rows"]
    return rows


def page_of(session_id: str, folder: Path) -> str:
    file = folder / "page.html"
    assert main(["session", "trace", session_id, "-o", str(file)]) == 0
    return file.read_text(encoding="utf-8")


def run_turns(plan: str, backend: str, home: Path, workdir: Path, *prompts: str) -> None:
    """Run turns of one session, each with a command of its own, in one process."""
    commands = []
    for number, prompt in enumerate(prompts):
        which = ["--resume", "one"] if number else ["--session-id", "one"]
        commands.append(["run", prompt, *which, "-q", "--plan", plan, "--backend", backend])
    program = "import json, sys; from amplifier.cli import main; [main(words) for words in json.loads(sys.argv[1])]"
    words = [sys.executable, "-c", program, json.dumps(commands)]
    finished = run_forked(words, cwd=workdir, env=environment(home), text=True, timeout=PATIENCE)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
def test_page_text_log_and_session_show_agree_on_a_real_session(
    backend, store, home, workdir, logging_plan, cli, tmp_path
):
    (workdir / "gate").touch()
    run_turns(
        logging_plan,
        backend,
        home,
        workdir,
        call("wait_for", path=workdir / "gate"),
        call("risky", path=workdir / "denied"),
        "call crash",
        "call task " + json.dumps({"agent": "helper", "instruction": "say hello"}),
        "fail",
    )
    shown = json.loads(cli("session", "show", "one", "--json").out)
    rows = rows_of(page_of("one", tmp_path))
    kinds = [row["k"] for row in rows]
    activity = shown["activity"]
    assert len(log_parts(store.folder("one") / "events.jsonl")) > 3
    children = store.descendants("one")
    assert len(children) == 1

    # Every line of every log is in exactly one row.
    logs = [
        part
        for name in ["one", *children]
        for part in log_parts(store.folder(name) / "events.jsonl")
    ]
    written = [line for part in logs for line in part.read_bytes().splitlines()]
    events = sorted((event for row in rows for event in row["v"]), key=lambda event: event[0])
    assert [event[1] for event in events] == [json.loads(line)["event"] for line in written]

    # `session show` counts the same rows, and has the same prompts and tool calls in its messages.
    counts = {
        "turns": "turn",
        "model_calls": "model",
        "tool_calls": "tool",
        "sessions": "session",
        "approvals": "approval",
    }
    assert {name: activity[name] for name in counts} == {
        name: kinds.count(kind) for name, kind in counts.items()
    }
    assert (activity["turns"], activity["tool_calls"], activity["approvals"]) == (6, 4, 1)
    own = [row for row in rows if row["i"] == "one"]
    prompts = [message["content"] for message in shown["messages"] if message["role"] == "user"]
    assert [row["x"] for row in own if row["k"] == "turn"] == prompts
    results = [message["name"] for message in shown["messages"] if message["role"] == "tool"]
    assert [row["l"].removeprefix("tool ") for row in own if row["k"] == "tool"] == results

    by_name = {row["l"]: row for row in own}
    assert [by_name[name]["t"] for name in ("tool wait_for", "tool risky", "tool crash")] == [
        "ok",
        "cancelled",
        "error",
    ]  # no one could be asked about the second
    child = next(row for row in rows if row["k"] == "session" and row["i"] != "one")
    assert rows[child["p"]]["l"] == "tool task"
    assert activity["cost"] == "0.0008"  # that turn ended there, without another model call

    text = cli("session", "trace", "one", "--text").out
    assert sum(bool(re.match(r" *[\d.]+  ", line)) for line in text.splitlines()) >= len(rows)
    assert "denied" in text
    assert "\x1b" not in text
    assert "note:" not in text


def test_the_page_is_private_and_named_after_the_session(store, workdir, cli, monkeypatch):
    monkeypatch.chdir(workdir)
    write_log(store, "one", *small_session())
    assert cli("session", "trace").out == "trace-one.html\n"
    assert stat.S_IMODE((workdir / "trace-one.html").stat().st_mode) == 0o600
    assert cli("session", "trace", "one", "-o", "-").out == (workdir / "trace-one.html").read_text(
        encoding="utf-8"
    )
    cli("session", "trace", "one", "--text", "-o", "t.txt")
    assert "1 turn, 2 model calls" in (workdir / "t.txt").read_text(encoding="utf-8")


def test_a_session_without_a_log_says_how_to_get_one(store, cli, tmp_path):
    keep(store, "one")
    text = cli("session", "trace", "one", "--text").out
    assert (
        'note: this session has no event log; {"module": "hooks-logging"} in the hooks of a plan'
        in text
    )
    assert rows_of(page_of("one", tmp_path)) == []
    cli("session", "show", "one", "--json")


def test_a_log_that_is_no_file_is_refused(store, cli):
    path = write_log(store, "one")
    path.unlink()
    path.mkdir()
    assert (
        f"{path} is a directory, expected a regular file"
        in cli("session", "trace", "one", "--text", code=2).err
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--live", "--text"], "--live shows one session"),
        (["--live", "--compare", "one"], "--live shows one session"),
        (["--open", "--text"], "--open opens a page"),
        (["--open", "--compare", "one"], "--open opens a page"),
        (["--open", "-o", "-"], "--open needs a file"),
    ],
)
def test_options_that_exclude_each_other_are_refused(store, cli, words, problem):
    write_log(store, "one", *small_session())
    assert problem in cli("session", "trace", "one", *words, code=2).err


def test_open_shows_the_page_in_the_browser(store, workdir, home):
    write_log(store, "one", *small_session())
    browser = workdir / "browser"
    browser.write_text(f"#!/bin/sh\nprintf %s \"$1\" > '{workdir}/opened'\n")
    browser.chmod(0o755)
    words = command("session", "trace", "one", "--open")
    variables = environment(home, {"BROWSER": f"{browser} %s"})
    finished = run_forked(words, cwd=workdir, env=variables, text=True, timeout=PATIENCE)
    assert finished.returncode == 0, finished.stderr
    assert (workdir / "opened").read_text() == (workdir / "trace-one.html").as_uri()


def test_two_sessions_are_compared(store, workdir, cli, monkeypatch):
    monkeypatch.chdir(workdir)
    lines_of = small_session()
    shorter = [*lines_of[:10], *lines_of[-3:]]  # without the second model call
    write_log(
        store,
        "two",
        *(text.replace(b'"session_id": "s"', b'"session_id": "two"') for text in shorter),
    )
    write_log(
        store,
        "one",
        *(text.replace(b'"session_id": "s"', b'"session_id": "one"') for text in lines_of),
    )
    lines = [
        re.split(r"  +", line.strip())
        for line in cli("session", "trace", "one", "--compare", "two").out.splitlines()
    ]
    sums = {line[0]: line[1:] for line in lines if len(line) == 4}
    assert sums["model calls"] == ["2", "1", "-50 %"]
    assert sums["tool calls"] == ["1", "1", "="]
    assert sums["tokens"] == ["30", "15", "-50 %"]
    assert sums["cost"] == ["$0.0200", "$0.0100", "-50 %"]
    steps = [line for line in lines if len(line) == 2 and line[0].startswith(("model", "tool"))]
    assert [[step.partition(",")[0] for step in pair] for pair in steps] == [
        ["model mock (m-1)", "model mock (m-1)"],
        ["tool bash", "tool bash"],
        ["model mock (m-1)", "—"],
    ]
    assert "did you mean 'two'" in cli("session", "trace", "one", "--compare", "twp", code=2).err


def test_the_journal_of_a_killed_turn_is_shown(backend, store, home, workdir, tmp_path, cli):
    plan = json.loads(write_plan(tmp_path).read_text())
    plan["session"]["context"] = {"module": "context-persistent", "config": {"durable_turns": True}}
    plan["hooks"].append({"module": "hooks-logging"})
    file = tmp_path / "durable.json"
    file.write_text(json.dumps(plan))
    words = ["run", call("wait_for", path=workdir / "never"), "--session-id", "one"]
    words += ["--plan", str(file), "--backend", backend]
    with start(*words, home=home, cwd=workdir, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for shown in process.stderr:
            if "wait_for" in shown:
                break
        while not any(record["step"] == "started" for record in store.steps("one")):
            time.sleep(0.01)  # another process writes it
        process.send_signal(signal.SIGKILL)
    rows = rows_of(page_of("one", tmp_path))
    (row,) = [row for row in rows if row["k"] == "tool"]
    assert row["t"] == "open"
    assert [event[1] for event in row["v"]] == ["tool:pre", "journal:started"]
    assert "no end in the log" in cli("session", "trace", "one", "--text").out


def test_files_that_cannot_be_written_are_errors(store, workdir, cli):
    write_log(store, "one", *small_session())
    assert "is not a regular file" in cli("session", "trace", "one", "-o", str(workdir), code=2).err
    assert (
        "No such file or directory"
        in cli("session", "trace", "one", "-o", str(workdir / "none" / "x.html"), code=2).err
    )
