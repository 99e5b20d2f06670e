"""A command that is killed in the middle of a turn: `session resume` goes on with the turn, on both backends."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.plan.dicts import module_hashes, plan_changes
from amplifier.store import SessionRecord
from tests._support.terminal import PATIENCE, json_of, open_terminal, run_cli
from tests.cli._scripted_agent import call


@pytest.fixture
def durable_plan(plan: str) -> Path:
    """The plan of the scripted agent, with durable turns."""
    file = Path(plan)
    content = json.loads(file.read_text())
    content["session"]["context"] = {
        "module": "context-persistent",
        "config": {"durable_turns": True},
    }
    file.write_text(json.dumps(content))
    return file


def sessions(home: Path) -> SessionStore:
    return SessionStore(home / "sessions")


def kill_while(
    shown: str, prompt: str, plan: Path, backend: str, home: Path, workdir: Path
) -> None:
    """Run a turn at a terminal until it shows something, and kill the process."""
    with open_terminal(
        "run", prompt, "--plan", str(plan), "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect(shown)
        if "wait_for" in shown:
            wait_until_started(home)  # shown when hooks decide about the call, a moment earlier
        terminal.send(signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL
    assert [record.status for record in sessions(home).records()] == ["interrupted"]


def wait_until_started(home: Path) -> None:
    give_up = time.monotonic() + PATIENCE
    store = sessions(home)
    while not any(
        step["step"] == "started"
        for each in store.records()
        for step in store.steps(each.session_id)
    ):
        assert time.monotonic() < give_up, "no tool call was started"
        time.sleep(0.01)  # another process writes it


def roles(home: Path) -> list[str]:
    store = sessions(home)
    return [message["role"] for message in store.transcript(store.find("last").session_id)]


@pytest.mark.slow
def test_interrupted_call_needs_permission_to_repeat(backend, home, workdir, durable_plan):
    gate = workdir / "gate"
    kill_while("s  wait_for", call("wait_for", path=gate), durable_plan, backend, home, workdir)
    gate.touch()
    with open_terminal(
        "session", "resume", "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("Continuing the interrupted turn.", "Run the tool 'wait_for' again?")
        terminal.answer("n", "Interrupted tool calls: 1 call left interrupted (wait_for).")
        terminal.expect("done: [interrupted: the process ended while this call was running")
        terminal.leave()
    assert roles(home) == ["user", "assistant", "tool", "assistant"]
    store = sessions(home)
    assert store.find("last").status == "success"
    left = {path.name for path in store.folder(store.find("last").session_id).iterdir()}
    assert left == {"checkpoints.git", "checkpoints.json", "lock"}
    assert (
        store.steps(store.find("last").session_id),
        store.turn_plan(store.find("last").session_id),
    ) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "shown"), [("wait_for", "s  wait_for"), ("risky", "Your answer: ")]
)
def test_turn_without_terminal_is_unchanged(tool, shown, backend, home, workdir, durable_plan):
    """Whether the question is about repeating a call, or one of a hook's about a call that was never started."""
    trace = workdir / "trace"
    kill_while(shown, call(tool, path=trace), durable_plan, backend, home, workdir)
    if tool == "wait_for":
        trace.touch()
    store = sessions(home)
    folder = store.folder(store.find("last").session_id)
    before = (store.transcript(folder.name), store.turn_plan(folder.name))
    assert before[1]
    for _ in range(2):
        finished = run_cli(
            "session", "resume", "last", "--backend", backend, home=home, cwd=workdir
        )
        assert finished.returncode == 1, finished.stderr
        assert finished.stdout == ""
        assert "no one could be asked: " in finished.stderr
        assert f"with --yes: amplifier session resume {folder.name}" in finished.stderr
        assert "denied" not in finished.stderr.lower()
        assert store.find("last").status == "interrupted"
        assert (store.transcript(folder.name), store.turn_plan(folder.name)) == before
    assert store.steps(folder.name)
    asked = json_of(
        run_cli("session", "resume", "last", "--output-format", "json", home=home, cwd=workdir)
    )
    assert (asked["status"], "no one could be asked" in asked["error"]) == ("error", True)
    finished = run_cli(
        "session", "resume", "last", "--yes", "--backend", backend, home=home, cwd=workdir
    )
    assert finished.returncode == 0, finished.stderr
    assert "done: it " in finished.stdout
    assert trace.exists()


@pytest.mark.slow
def test_unattended_new_turn_is_left_resumable(backend, home, workdir, durable_plan):
    trace = workdir / "trace"
    words = ("--plan", durable_plan, "--backend", backend)
    finished = run_cli("run", call("risky", path=trace), *words, home=home, cwd=workdir)
    store = sessions(home)
    found = store.find("last")
    assert (finished.returncode, finished.stdout, found.status) == (1, "", "interrupted"), (
        finished.stderr
    )
    assert f"with --yes: amplifier session resume {found.session_id}" in finished.stderr
    assert not trace.exists()
    finished = run_cli(
        "session", "resume", "last", "--yes", "--backend", backend, home=home, cwd=workdir
    )
    assert (finished.returncode, trace.exists()) == (0, True), finished.stderr
    assert roles(home) == ["user", "assistant", "tool", "assistant"]


@pytest.mark.slow
def test_waiting_question_is_asked_again(backend, home, workdir, durable_plan):
    trace = workdir / "trace"
    kill_while("Your answer: ", call("risky", path=trace), durable_plan, backend, home, workdir)
    assert not trace.exists()
    with open_terminal(
        "session", "resume", "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("Continuing the interrupted turn.", "May risky touch trace?")
        terminal.answer("a", "Interrupted tool calls: 1 call started (risky).", "done: it was done")
        terminal.leave()
    assert trace.exists()


@pytest.mark.slow
def test_prompt_replaces_open_turn(backend, home, workdir, durable_plan):
    kill_while(
        "s  wait_for", call("wait_for", path=workdir / "gate"), durable_plan, backend, home, workdir
    )
    finished = run_cli(
        "session", "resume", "last", "say hello", "--backend", backend, home=home, cwd=workdir
    )
    assert finished.stdout.strip() == "hello"
    assert roles(home) == ["user", "assistant", "tool", "assistant", "user", "assistant"]


@pytest.mark.slow
def test_changed_plan_is_shown_before_resuming(home, workdir, durable_plan):
    gate = workdir / "gate"
    kill_while("s  wait_for", call("wait_for", path=gate), durable_plan, "asyncio", home, workdir)
    gate.touch()
    content = json.loads(durable_plan.read_text())
    content["hooks"] = []
    content["session"]["orchestrator"] = {"module": "loop-basic", "config": {"max_iterations": 5}}
    durable_plan.write_text(json.dumps(content))
    refused = run_cli("session", "resume", "last", home=home, cwd=workdir)
    assert refused.returncode == 2
    assert "The plan has changed since the turn was interrupted:" in refused.stderr
    assert "hooks-ask is not in the plan any more" in refused.stderr
    assert "Nothing was run. Continue with --accept-plan-changes" in refused.stderr
    assert roles(home) == ["user", "assistant"]
    accepted = run_cli(
        "session", "resume", "last", "--accept-plan-changes", "--yes", home=home, cwd=workdir
    )
    assert accepted.returncode == 0, accepted.stderr
    assert "hooks-ask is not in the plan any more" in accepted.stderr
    assert roles(home) == ["user", "assistant", "tool", "assistant"]


def test_plan_changes_are_listed_without_secrets(tmp_path):
    tools = [{"module": "tool-a", "config": {"api_key": "sk-1234567890abcdef"}}, "tool-b", "tool-b"]
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}, "tools": tools}
    store = SessionStore(tmp_path)
    store.write(SessionRecord(session_id="s"), turn_plan=module_hashes(plan))
    known = store.turn_plan("s")
    assert plan_changes(known, plan) == []
    assert b"sk-1234567890abcdef" not in store.path.read_bytes()
    changed = {
        **plan,
        "tools": [{"module": "tool-a", "config": {"timeout": 5}}, "tool-b", "tool-c"],
    }
    assert plan_changes(known, changed) == [
        "tool-b (2) is not in the plan any more",
        "tool-c is new in the plan",
        "tool-a is configured differently",
    ]
    store.write(SessionRecord(session_id="s"))
    assert store.turn_plan("s") == known
    store.write(SessionRecord(session_id="s"), turn_plan=None)
    assert plan_changes(store.turn_plan("s"), changed) == []
