"""Every example runs as a program: from any directory, without keys, on both backends, and prints what it is meant to."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest

from amplifier.conformance import check_module
from tests._support.engine_servers import postgres
from tests._support.programs import run_program
from tests._support.tree import ROOT

EXAMPLES = ROOT / "examples"
BOTH = ["asyncio", "trio"]


def run_example(name: str, *arguments: str, cwd: Path) -> str:
    """What an example prints; it has to end well and to warn of nothing."""
    keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    environment = {key: value for key, value in os.environ.items() if key not in keys}
    ended = run_program(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments], cwd=cwd, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert list(cwd.iterdir()) == []
    return ended.stdout


@pytest.mark.parametrize("backend", BOTH)
def test_manual_agent_answers_and_stops(backend, tmp_path):
    output = run_example("first_agent.py", backend, cwd=tmp_path)
    assert f"one agent, on {backend}" in output
    assert "denied: that file holds secrets" in output
    assert "was cancelled: it was stopped (the user pressed stop)" in output
    assert "nothing left: 0 handlers" in output


@pytest.mark.parametrize("backend", BOTH)
def test_agent_uses_custom_tool(backend, tmp_path):
    output = run_example("custom_tool.py", backend, cwd=tmp_path)
    assert '"words": 6' in output
    assert '"words": 4' in output
    assert '"total": 10' in output
    assert "text" in output.splitlines()[3]  # the error for the misspelt argument
    assert "agent: Ten words in all." in output


@pytest.mark.parametrize("backend", BOTH)
def test_gate_refuses_asks_and_fails_closed(backend, tmp_path):
    output = run_example("gate_hook.py", backend, cwd=tmp_path)
    assert "read notes.txt → notes.txt has 1 line:" in output
    assert "read .env → Could not do it: denied: .env is kept secret" in output
    assert "hunter2" not in output
    assert "asked: May I write diary.txt? Allow" in output
    assert 'write "dear diary" to diary.txt → Wrote 11 bytes to diary.txt.' in output
    assert 'write "nothing" to notes.txt → Could not do it: denied' in output
    assert "denied: gate 'broken-gate' failed: ConnectionError" in output


@pytest.mark.parametrize("backend", BOTH)
def test_loop_falls_back_to_next_model(backend, tmp_path):
    output = run_example("custom_orchestrator.py", backend, cwd=tmp_path)
    assert output.index("'provider': 'mock', 'error': 'overloaded") < output.index(
        "'provider': 'offline'"
    )
    assert "execution:end {'status': 'completed'}" in output
    assert "agent: 0 visible entries:" in output


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
def test_sub_agents_report_and_are_closed(backend, tmp_path):
    output = run_example("sub_agents.py", backend, cwd=tmp_path)
    assert output.count("spawned reader, a child of parent") == 2
    assert re.search(r"reader: agent\.yaml has \d+ lines\.", output)
    assert re.search(r"reader: \d+ Python files:", output)
    assert "agent: Both have reported." in output
    assert "child is closed, parent is open" in output


@pytest.mark.slow
def test_trio_application_abandons_and_stops_turns(tmp_path):
    output = run_example("trio_app.py", cwd=tmp_path)
    answers = [line for line in output.splitlines() if "→" in line]
    assert len(answers) == 4
    gave_up = [line for line in answers if line.endswith("→ gave up after 3 seconds")]
    assert [line.split(":")[0].strip() for line in gave_up] == ["cleo"]
    assert "stopped: True; turn cancelled, session closed" in output


def test_plan_runs_at_command_line(tmp_path):
    (tmp_path / "desk").mkdir()
    command = [
        sys.executable,
        "-m",
        "amplifier",
        "run",
        "-q",
        "--plan",
        str(EXAMPLES / "agent.yaml"),
        "list the files",
    ]
    ended = run_program(
        command, cwd=tmp_path / "desk", env={**os.environ, "AMPLIFIER_HOME": str(tmp_path / "home")}
    )
    assert ended.returncode == 0, ended.stderr
    assert "0 visible entries" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)  # a loop is cancelled at hundreds of awaits
@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("custom_orchestrator.py", ["trio"]),
        ("gate_hook.py", ["asyncio"]),
        *(
            pytest.param(name, BOTH, marks=pytest.mark.long)
            for name in ("custom_orchestrator.py", "gate_hook.py")
        ),
    ],
)
def test_modules_keep_their_contracts(name, backends):
    report = anyio.run(partial(check_module, EXAMPLES / name, backends=backends))
    assert report.verdict == "conforms"
    assert [
        (finding.clause, finding.what) for finding in report.violations + report.recommendations
    ] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_custom_tool_passes_own_test(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(EXAMPLES / "test_custom_tool.py"),
    ]
    ended = run_program(command, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^82 passed", ended.stdout, re.MULTILINE)


def test_every_example_is_listed_and_tested():
    listed = set(
        re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    )
    there = {
        path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name != "README.md"
    }
    assert listed == there
    folders = (Path(__file__).parent, Path(__file__).parents[1] / "suites")
    tests = "".join(
        path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py")
    )
    assert [name for name in there if name.removeprefix("test_") not in tests] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("trio", "sqlite"),
        ("asyncio", "postgres"),
        *(
            pytest.param(*pair, marks=pytest.mark.long)
            for pair in (("asyncio", "sqlite"), ("trio", "postgres"))
        ),
    ],
)
def test_payment_of_killed_worker_is_reconciled(backend, kind, tmp_path):
    with ExitStack() as stack:
        where = [stack.enter_context(postgres()).url] if kind == "postgres" else []
        output = run_example("durable/two_workers.py", backend, *where, cwd=tmp_path)
    assert "which is killed now" in output
    attempt = int(re.findall(r"anna: Everything is paid. \(attempt (\d+)\)", output)[0])
    # On a very busy machine the other worker may be taken for dead as well.
    assert attempt >= 2
    assert "bert: Everything is paid." in output
    assert "  books paid, found in the book\n  lamps paid" in output
    assert "payments: 4, orders: 4" in output
