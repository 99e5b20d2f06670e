"""`amplifier run` in pipes and scripts: what goes where, the JSON shapes, the exit codes, and one message for every way to fail."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from amplifier.cli import main
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import SessionStore
from amplifier.store import SessionRecord
from tests._support.backends import mostly_on
from tests._support.forked import Forked, run_forked
from tests._support.programs import run_program
from tests._support.terminal import (
    PATIENCE,
    command,
    environment,
    json_of,
    run_cli,
    run_without,
    start,
)
from tests.cli._scripted_agent import call, write_plan

JSON_KEYS = [
    "error",
    "error_type",
    "exit_code",
    "files",
    "metadata",
    "model",
    "provider",
    "response",
    "session_id",
    "status",
    "timestamp",
    "usage",
]


# ── what goes where ──────────────────────────────────────────────────────────────────────────────


def test_standard_output_has_answer_only(backend, home, workdir, plan):
    (workdir / "gate").touch()
    prompt = call("wait_for", path=workdir / "gate")
    finished = run_cli("run", prompt, "--plan", plan, "--backend", backend, home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (0, "done: it is there \n")
    lines = finished.stderr.splitlines()
    assert [lines[0].split()[:2], lines[1].split()[:2]] == [["→", "wait_for"], ["✓", "wait_for"]]
    assert lines[2].startswith("session ")
    assert lines[2].endswith("30 tokens (40% of the input cached), $0.0002)")
    assert len(lines) == 3


def test_kept_files_are_private_to_owner(tmp_path, workdir, plan):
    home = tmp_path / "not" / "there yet"
    before = os.umask(0)
    try:
        done = run_cli("run", "--plan", str(plan), "hello", home=home, cwd=workdir)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    kept = [home.parent, home, *home.rglob("*")]
    assert len(kept) > 4
    assert [path for path in kept if path.stat().st_mode & 0o077] == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["-"]])
def test_prompt_may_come_through_pipe(words, home, workdir, plan):
    finished = run_cli(
        "run", *words, "--plan", plan, home=home, cwd=workdir, stdin="say from a pipe"
    )
    assert (finished.returncode, finished.stdout) == (0, "from a pipe \n")


@mostly_on("asyncio")
def test_json_has_fixed_shape(backend, home, workdir, plan):
    words = ("run", "say hello", "--output-format", "json", "--plan", plan, "--backend", backend)
    shown = json_of(run_cli(*words, home=home, cwd=workdir))
    assert sorted(shown) == JSON_KEYS
    assert (shown["status"], shown["response"], shown["error"], shown["exit_code"]) == (
        "success",
        "hello ",
        None,
        0,
    )
    assert shown["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "cost_usd": "0.0001",
    }
    assert shown["metadata"]["total_tool_calls"] == 0
    assert shown["provider"] == "scripted"
    assert Path(shown["files"]["transcript"]).is_file()


@pytest.mark.slow
def test_json_trace_has_tool_calls_in_order(home, workdir, plan):
    for name in ("a", "b"):
        (workdir / name).touch()
    inputs = [
        json.dumps({"path": str(workdir / name)}, separators=(",", ":")) for name in ("a", "b")
    ]
    finished = run_cli(
        "run",
        f"both {' '.join(inputs)}",
        "--output-format",
        "json-trace",
        "--plan",
        plan,
        home=home,
        cwd=workdir,
    )
    shown = json_of(finished)
    assert sorted(shown) == sorted([*JSON_KEYS, "execution_trace"])
    trace = shown["execution_trace"]
    assert [(step["type"], step["sequence"], step["tool"]) for step in trace] == [
        ("tool_call", 1, "wait_for"),
        ("tool_call", 2, "wait_for"),
    ]
    assert [step["arguments"]["path"] for step in trace] == [str(workdir / "a"), str(workdir / "b")]
    assert all(step["result"]["success"] and step["duration_ms"] >= 0 for step in trace)
    assert shown["metadata"]["total_tool_calls"] == 2


@pytest.mark.slow
@mostly_on("trio")
def test_json_survives_failed_turn(backend, home, workdir, plan):
    words = ("run", "fail", "--output-format", "json", "--plan", plan, "--backend", backend)
    finished = run_cli(*words, home=home, cwd=workdir)
    shown = json_of(finished)
    assert finished.returncode == shown["exit_code"] == 1
    assert (shown["status"], shown["error"]) == ("error", "the quota is used up")
    assert shown["error_type"] == "QuotaExceededError"
    assert sorted(shown) == JSON_KEYS


# ── permission ───────────────────────────────────────────────────────────────────────────────────


def test_question_without_terminal_ends_turn(backend, home, workdir, plan):
    prompt = call("risky", path=workdir / "trace")
    finished = run_cli("run", prompt, "--plan", plan, "--backend", backend, home=home, cwd=workdir)
    assert "no one could be asked: May risky touch trace?" in finished.stderr
    assert "There is no terminal to ask at. The turn stays as it was." in finished.stderr
    assert "denied" not in finished.stderr.lower()
    assert not (workdir / "trace").exists()
    assert (finished.returncode, finished.stdout) == (
        1,
        "",
    )  # a script learns that nothing was done


def test_yes_allows_and_shows_calls(home, workdir, plan):
    prompt = call("risky", path=workdir / "trace")
    finished = run_cli("run", prompt, "--yes", "--plan", plan, home=home, cwd=workdir)
    assert "allowed (--yes): May risky touch trace?" in finished.stderr
    assert (workdir / "trace").exists()


# ── one message for every way to fail ────────────────────────────────────────────────────────────


def assert_one_message(finished: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    for word in words:
        assert word in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ([""], b"", ['the prompt is empty; pass one: amplifier run "…"']),
        ([], b"  \n", ["the prompt is empty"]),
        ([], b"\xff\xfe", ["not UTF-8: byte 1"]),
        ([], b"x" * (16 * 2**20 + 1), ["longer than 16 MiB"]),
        (["x", "--resume", "no-such"], b"", ["no session 'no-such'", "amplifier session list"]),
        (["x", "--resume", "last"], b"", ["there is no session yet"]),
        (["x", "--session-id", "../x"], b"", ["expected 1 to 200 of"]),
        (["x", "-p", "no-such"], b"", ["no provider 'no-such'"]),
        (["x", "--plan", "missing.yaml"], None, ["missing.yaml", "does not exist"]),
        (["x", "--resume", "a", "--session-id", "b"], None, ["pass one of them"]),
        (["x", "-C", "nowhere"], None, ["nowhere", "does not exist"]),
        (["x", "--backend", "curio"], None, ["'curio' is not one of 'asyncio', 'trio'"]),
    ],
)
def test_unstartable_run_reports_reason(arguments, stdin, words, home, workdir, monkeypatch, cli):
    """As text and, unless the options are wrong, for which nothing is on standard input here, as JSON."""
    monkeypatch.chdir(workdir)
    monkeypatch.setenv("AMPLIFIER_HOME", str(home))
    for output_format in ("text",) if stdin is None else ("text", "json"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
        printed = cli("run", *arguments, "--output-format", output_format, code=2)
        assert "Traceback" not in printed.err
        assert [word for word in words if word not in printed.err] == []
        if output_format == "text":
            assert printed.out == ""
            assert "no provider" in words[0] or not home.exists()
        else:
            shown = json.loads(printed.out)
            assert sorted(shown) == JSON_KEYS
            assert (shown["status"], shown["exit_code"], shown["session_id"]) == ("error", 2, None)
            assert words[0] in shown["error"]
            assert shown["error"] in printed.err


@pytest.mark.parametrize("words", [["session", "resume", "mine"], ["run", "--resume", "mine"]])
def test_empty_prompt_names_resuming_command(words, home, monkeypatch, cli):
    monkeypatch.setenv("AMPLIFIER_HOME", str(home))
    SessionStore(home / "sessions").write(SessionRecord(session_id="mine"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert (
        'the prompt is empty; pass one: amplifier session resume mine "…"'
        in cli(*words, code=2).err
    )


def change(plan: str, **sections: object) -> str:
    content = json.loads(Path(plan).read_text())
    Path(plan).write_text(json.dumps({**content, **sections}))
    return plan


def test_unknown_loop_suggests_nearest(home, workdir, plan):
    bad = change(plan, session={"orchestrator": "loop-steaming", "context": "context-simple"})
    finished = run_cli("run", "say x", "--plan", bad, home=home, cwd=workdir)
    assert_one_message(
        finished, 2, "no module 'loop-steaming' is installed; did you mean 'loop-streaming'?"
    )
    assert f"There may be more: amplifier plan check {bad}" in finished.stderr


@mostly_on("trio")
def test_plan_with_misspelt_section_is_refused(backend, home, workdir, plan):
    bad = change(plan, hoks=[{"module": "hooks-approval", "on_failure": "deny"}])
    finished = run_cli("run", "say x", "--plan", bad, "--backend", backend, home=home, cwd=workdir)
    assert_one_message(finished, 2, "$.hoks: unknown section 'hoks'; did you mean 'hooks'?")


def test_prompt_words_and_quiet_answer(home, workdir, plan):
    finished = run_cli(
        "run",
        "say",
        "two",
        "words",
        "-q",
        "--plan",
        plan,
        "--session-id",
        "s",
        home=home,
        cwd=workdir,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "two words \n", "")
    finished = run_cli("session", "resume", "last", "say", "more", "-q", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (0, "more \n")


UNUSABLE = {
    "tools": [{"module": "tool-serach"}],
    "hooks": [{"module": "hooks-approval", "config": {"rules": 7}}, {"module": "hooks-aproval"}],
}


@pytest.mark.slow
@mostly_on("asyncio")
def test_unusable_modules_stop_run_by_name(backend, home, workdir, plan):
    bad = change(plan, **UNUSABLE)
    finished = run_cli(
        "run", "say fine", "--plan", bad, "--backend", backend, home=home, cwd=workdir
    )
    assert_one_message(
        finished,
        2,
        "3 modules of the plan cannot be used, so nothing was begun:",
        "tool-serach: no module 'tool-serach' is installed; did you mean 'tool-search'?",
        "hooks-approval: ",
        "hooks-aproval: no module 'hooks-aproval' is installed; did you mean 'hooks-approval'?",
        "`strict: false`",
    )
    assert os.listdir(home / "sessions") == ["store.db"]
    assert SessionStore(home / "sessions").records() == []


@pytest.mark.slow
@mostly_on("trio")
def test_non_strict_plan_runs_without_failed_modules(backend, home, workdir, plan):
    session = {"orchestrator": "loop-streaming", "context": "context-simple", "strict": False}
    odd = change(plan, **UNUSABLE, session=session)
    finished = run_cli(
        "run", "say fine", "--plan", odd, "--backend", backend, home=home, cwd=workdir
    )
    assert (finished.returncode, finished.stdout) == (0, "fine \n")
    assert (
        "tool-serach is not available: no module 'tool-serach' is installed; did you mean"
        in finished.stderr
    )
    assert "hooks-approval is not available: " in finished.stderr


SHY = (
    "import logging; logging.getLogger('shy').warning('provider-shy is not mounted: needs SHY_KEY')"
)


@pytest.mark.slow
@mostly_on("asyncio")
def test_other_provider_never_replaces_chosen_one(backend, home, workdir, plan, tmp_path):
    shy = {"module": "provider-shy", "source": write_module(tmp_path, SHY)}
    both = change(plan, providers=[shy, *json.loads(Path(plan).read_text())["providers"]])
    words = ["run", "say fine", "--plan", both, "--backend", backend]
    for name in ("shy", "provider-shy"):
        finished = run_cli(*words, "-p", name, home=home, cwd=workdir)
        assert_one_message(finished, 2, "provider-shy declined: ", "needs SHY_KEY")
    for chosen in ([], ["-p", "scripted"]):
        finished = run_cli(*words, *chosen, home=home, cwd=workdir)
        assert (finished.returncode, finished.stdout) == (0, "fine \n")


def write_module(folder: Path, body: str) -> str:
    package = folder / "amplifier_module_provider_shy"
    package.mkdir()
    (package / "__init__.py").write_text(f"async def mount(coordinator, config):\n    {body}\n")
    return str(package)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", ["provider-shy declined: it gave no reason"]),
        (
            "import logging; logging.getLogger('shy').warning('provider-shy: no key; set SHY_KEY')",
            ["amplifier: provider-shy declined: provider-shy: no key; set SHY_KEY. To try"],
        ),
        (
            "raise RuntimeError('needs SHY_KEY')",
            ["no provider could be mounted: provider-shy:", "needs SHY_KEY"],
        ),
        (
            "from amplifier.errors import MissingExtraError; raise MissingExtraError('shyness', extra='shy')",
            ["pip install 'amplifier[shy]'"],
        ),
    ],
)
def test_run_without_provider_gives_advice(body, words, home, workdir, plan, tmp_path):
    shy = change(
        plan, providers=[{"module": "provider-shy", "source": write_module(tmp_path, body)}]
    )
    finished = run_cli("run", "say x", "--plan", shy, home=home, cwd=workdir)
    assert_one_message(finished, 2, "amplifier run -p offline", *words)
    assert len(finished.stderr.splitlines()) == 1
    assert SessionStore(home / "sessions").names() == []  # there was no turn
    assert [path.name for path in (home / "sessions").iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_failed_turn_is_one_message(home, workdir, plan):
    """With debug it has a traceback."""
    finished = run_cli("run", "fail", "--plan", plan, home=home, cwd=workdir)
    assert_one_message(finished, 1, "amplifier: the quota is used up")
    finished = run_cli("run", "fail", "--debug", "--plan", plan, home=home, cwd=workdir)
    assert finished.returncode == 1
    assert "Traceback" in finished.stderr
    assert "QuotaExceededError: the quota is used up" in finished.stderr


@pytest.mark.parametrize("words", [["run", "say x"], ["session", "list"]])
def test_unusable_home_names_variable(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "file"))
    assert main(words) == 2
    captured = capsys.readouterr().err
    assert f"{tmp_path / 'file'} is not a folder" in captured
    assert "AMPLIFIER_HOME" in captured


def test_uncreatable_home_names_variable(tmp_path, monkeypatch, cli):
    def refuse(*_args: object, **_options: object) -> str:
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(tmp_path / "nope")
        )  # as in /proc

    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "nope"))
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    captured = cli("run", "say x", code=2).err
    assert (
        f"sessions cannot be kept in {tmp_path / 'nope' / 'sessions'}: nothing can be created in {tmp_path}"
        in captured
    )
    assert "set AMPLIFIER_HOME to a folder that you can write to" in captured


def test_deleted_working_directory_is_reported(home, workdir, plan):
    words = [
        "/bin/sh",
        "-c",
        'rmdir "$PWD" && exec "$@"',
        "sh",
        *command("run", "say x", "--plan", plan),
    ]
    finished = run_program(words, cwd=workdir, env=environment(home))
    assert_one_message(finished, 2, "the working directory no longer exists", "-C DIRECTORY")


def test_missing_trio_is_named(home, workdir, plan):
    finished = run_without(
        "trio", "run", "x", "--backend", "trio", "--plan", plan, home=home, cwd=workdir
    )
    assert_one_message(finished, 2, "pip install 'amplifier[trio]'")


# ── going on ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_session_resumes_with_plan_and_directory(home, workdir, plan, tmp_path):
    first = json_of(
        run_cli("run", "history", "--output-format", "json", "--plan", plan, home=home, cwd=workdir)
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    prefix = first["session_id"][:-2]
    second = run_cli(
        "run", "history", "--resume", prefix, "--output-format", "json", home=home, cwd=elsewhere
    )
    assert json_of(second)["response"] == "2 prompts so far "
    assert json_of(second)["session_id"] == first["session_id"]
    assert f"Working in {workdir}" in second.stderr
    touch = 'call risky {"path": "trace"}'
    assert (
        run_cli("session", "resume", "last", touch, "--yes", home=home, cwd=elsewhere).returncode
        == 0
    )
    assert ((workdir / "trace").exists(), (elsewhere / "trace").exists()) == (True, False)
    assert (
        run_cli(
            "session", "resume", "last", touch, "-y", "-C", str(elsewhere), home=home, cwd=workdir
        ).returncode
        == 0
    )
    assert (elsewhere / "trace").exists()


@pytest.mark.slow
def test_user_session_id_cannot_be_reused(home, workdir, plan):
    words = ("run", "say x", "--session-id", "mine", "--plan", plan)
    assert (
        json_of(run_cli(*words, "--output-format", "json", home=home, cwd=workdir))["session_id"]
        == "mine"
    )
    assert_one_message(run_cli(*words, home=home, cwd=workdir), 2, "amplifier run --resume mine")


@pytest.mark.slow
def test_session_open_elsewhere_is_refused(home, workdir, plan):
    prompt = call("wait_for", path=workdir / "gate")
    words = ("run", prompt, "--session-id", "busy", "--plan", plan)
    with start(*words, home=home, cwd=workdir) as first:
        wait_for_line(first, "→ wait_for")
        expected = (
            "session 'busy' is open in another process (process ",
            "amplifier session fork busy",
        )
        resume = [
            "session",
            "resume",
            "last",
        ]  # without a prompt, a turn that was cut off would go on
        for refused in (
            ["run", "x", "--resume", "busy", "--plan", plan],
            [*resume, "say hello"],
            resume,
        ):
            assert_one_message(run_cli(*refused, home=home, cwd=workdir), 2, *expected)
        store = SessionStore(home / "sessions")
        with pytest.raises(CommandError, match="open in another process"):
            store.delete("busy")
        assert (store.record("busy").status, len(store.transcript("busy"))) == ("running", 2)
        (workdir / "gate").touch()
        assert first.wait(PATIENCE) == 0


# ── signals and pipes ────────────────────────────────────────────────────────────────────────────


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line begins with {beginning!r}")


def test_signal_gives_exit_code_and_json(backend, home, workdir, plan):
    prompt = call("wait_for", path=workdir / "gate")
    words = ("run", prompt, "--output-format", "json", "--plan", plan, "--backend", backend)
    with start(*words, home=home, cwd=workdir) as process:
        wait_for_line(process, "→ wait_for")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    shown = json.loads(output)
    assert process.returncode == shown["exit_code"] == 143
    assert shown["status"] == "cancelled"
    assert (workdir / "gate.cancelled").exists()
    assert SessionStore(home / "sessions").record(shown["session_id"]).status == "cancelled"


@pytest.mark.slow
def test_ctrl_c_once_and_twice_without_terminal(backend, home, workdir, plan):
    with start(
        "run",
        "hang",
        "--output-format",
        "json",
        "--plan",
        plan,
        "--backend",
        backend,
        home=home,
        cwd=workdir,
    ) as p:
        wait_for_file(workdir.parent, "hanging", b"")
        p.send_signal(signal.SIGINT)
        wait_for_line(p, "Stopping after the running step.")
        p.send_signal(signal.SIGINT)
        output, errors = p.communicate(timeout=PATIENCE)
    shown = json.loads(output)
    assert p.returncode == shown["exit_code"] == 130
    assert shown["response"] == "hanging "  # what had been streamed of the answer
    assert (
        "Stopped. The prompt and every finished step are kept; the unfinished answer is not."
        in errors
    )


def test_early_ctrl_c_reports_no_session(home, workdir, plan, tmp_path):
    started = tmp_path / "signs" / "started"
    started.parent.mkdir()
    body = f"import anyio, pathlib; pathlib.Path({str(started)!r}).touch(); await anyio.sleep_forever()"
    slow = change(
        plan, providers=[{"module": "provider-shy", "source": write_module(tmp_path, body)}]
    )
    with start("run", "x", "--plan", slow, home=home, cwd=workdir) as process:
        wait_for_file(tmp_path, started.name, b"")  # not that of another test
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (130, "")
    assert errors == "Stopping. (Ctrl-C)\n"


def wait_for_file(folder: Path, name: str, content: bytes) -> None:
    give_up = time.monotonic() + PATIENCE
    while not any(content in file.read_bytes() for file in folder.glob(f"*/{name}")):
        assert time.monotonic() < give_up, f"no {name} below {folder} has {content!r}"
        time.sleep(0.01)


def test_signal_ignored_by_parent_stays_ignored(home, workdir, plan):
    prompt = call("wait_for", path=workdir / "gate")
    program = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from amplifier.cli import main; "
        f"sys.exit(main(['run', {prompt!r}, '--plan', {plan!r}]))"
    )
    with Forked(
        [command()[0], "-c", program],
        cwd=workdir,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for_line(process, "→ wait_for")
        process.send_signal(signal.SIGHUP)
        (workdir / "gate").touch()
        output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "done: it is there \n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["run", "say hello"], ["session", "list"], ["module", "list"]])
def test_departed_reader_ends_command_quietly(words, home, workdir, plan):
    SessionStore(home / "sessions").write(SessionRecord(session_id="one"))
    extra = ["--plan", plan] if words[0] == "run" else []
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = run_forked(
            command(*words, *extra), cwd=workdir, env=environment(home), text=True, stdout=writing
        )
    finally:
        os.close(writing)
    assert finished.returncode == 141
    assert "Traceback" not in finished.stderr
    assert "BrokenPipe" not in finished.stderr


@pytest.mark.slow
def test_delegated_task_is_counted_with_own_session(backend, home, workdir, plan):
    content = json.loads(Path(plan).read_text())
    agents: dict[str, object] = {"helper": {"tools": []}}
    change(plan, tools=[*content["tools"], {"module": "tool-task"}], agents=agents)
    prompt = f"call task {json.dumps({'agent': 'helper', 'instruction': 'say from the child'})}"
    words = ("run", prompt, "--output-format", "json-trace", "--plan", plan, "--backend", backend)
    shown = json_of(run_cli(*words, home=home, cwd=workdir))
    assert shown["metadata"]["total_agents_invoked"] == 1
    assert "from the child" in shown["execution_trace"][0]["result"]["output"]["response"]
    store = SessionStore(home / "sessions")
    assert [record.session_id for record in store.records()] == [shown["session_id"]]
    assert len(store.records(with_children=True)) == 2


def test_context_without_file_runs(home, workdir, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    plan = str(write_plan(folder, context="context-simple"))
    shown = json_of(
        run_cli("run", "say x", "--output-format", "json", "--plan", plan, home=home, cwd=workdir)
    )
    assert (shown["status"], shown["files"]) == ("success", {})


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@mostly_on("trio")
def test_used_budget_is_shown(backend, home, workdir):
    words = ("run", "hello", "-p", "offline", "--max-cost", "0.50", "--max-total-tokens", "100000")
    finished = run_cli(*words, "--backend", backend, home=home, cwd=workdir)
    assert finished.returncode == 0
    [line] = [line for line in finished.stderr.splitlines() if line.startswith("budget ")]
    assert line.endswith("of 100,000 tokens, 0 of 0.5 USD used")


@pytest.mark.slow
@mostly_on("asyncio")
def test_insufficient_budget_has_own_exit_code(backend, home, workdir):
    words = ("run", "hello", "-p", "offline", "--max-total-tokens", "50", "--output-format", "json")
    finished = run_cli(*words, "--backend", backend, home=home, cwd=workdir)
    shown = json_of(finished)
    assert (finished.returncode, shown["exit_code"]) == (3, 3)
    assert (shown["status"], shown["error_type"], shown["response"]) == (
        "error",
        "BudgetExceeded",
        None,
    )
    assert shown["budget"] == {"used": {"tokens": 0}, "limits": {"tokens": 50}, "currency": "USD"}
    assert "does not suffice: tokens 0 of 50 used" in shown["error"]
    assert "--max-total-tokens" in shown["error"]
    assert finished.stderr.count("amplifier: ") == 1


def test_cost_limit_without_price_is_refused(home, workdir, plan):
    finished = run_cli(
        "run", "say hello", "--plan", plan, "--max-cost", "0.50", home=home, cwd=workdir
    )
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "session.budget.prices" in finished.stderr


# ── the model that is named ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("gpt-5", 2, "export OPENAI_API_KEY=..."),
        ("openai:gpt-5", 2, "export OPENAI_API_KEY=..."),
        ("big", 2, "no provider is there for the model 'big'"),
        ("antropic:claude-x", 2, "no provider 'antropic' is installed"),
        ("openai-compatible:x@http://127.0.0.1:9/v1", 1, ""),
    ],
)
def test_named_model_answers_or_is_refused(model, code, words, home, workdir):
    """None of them falls back to the offline rules."""
    finished = run_cli("run", "-m", model, "hello", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (code, "")
    assert words in finished.stderr
    assert "fixed rules" not in finished.stderr
