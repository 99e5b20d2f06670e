"""Standard streams that are full or closed: an answer that could not be written is never a success, and nothing crashes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from amplifier.cli._sessions import SessionStore
from tests._support.backends import mostly_on
from tests._support.programs import run_program
from tests._support.terminal import PATIENCE, command, environment

FULL = Path("/dev/full")
"""A device that is always full."""


def run_in_shell(
    redirection: str, *arguments: str, home: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run the command line with streams as a shell redirects them."""
    words = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *command(*arguments)]
    return run_program(words, cwd=cwd, env=environment(home), timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["text", "json"])
@mostly_on("trio")
def test_unwritable_answer_is_reported_and_fails(output_format, backend, home, workdir, plan):
    words = (
        "run",
        "-q",
        "say hello",
        "--plan",
        plan,
        "--backend",
        backend,
        "--output-format",
        output_format,
    )
    finished = run_in_shell(f">{FULL}", *words, home=home, cwd=workdir)
    assert finished.returncode == 1
    assert (
        "amplifier: the answer could not be written to standard output: No space left on device"
        in finished.stderr
    )
    assert "Traceback" not in finished.stderr
    assert "Exception ignored" not in finished.stderr
    (record,) = SessionStore(home / "sessions").records()
    assert record.status == "success"  # the turn itself went well and is kept


def test_unwritable_listing_is_reported(home, workdir):
    finished = run_in_shell(f">{FULL}", "module", "list", home=home, cwd=workdir)
    assert finished.returncode == 2
    assert finished.stderr == "amplifier: No space left on device\n"


@pytest.mark.parametrize("words", [["run", "say hello"], ["session", "list"], ["--version"]])
def test_closed_standard_output_is_refused_early(words, home, workdir):
    finished = run_in_shell(">&-", *words, home=home, cwd=workdir)
    assert finished.returncode == 2
    assert finished.stderr == "amplifier: standard output is closed; there is nowhere to write to\n"
    assert not home.exists()


@pytest.mark.slow
def test_failure_without_streams_keeps_exit_code(home, workdir):
    finished = run_in_shell("<&- 2>&-", "run", "x", "--resume", "no-such", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (2, "")


@pytest.mark.slow
@mostly_on("trio")
def test_closed_standard_input_holds_no_prompt(backend, home, workdir, plan):
    finished = run_in_shell("<&-", "run", "--plan", plan, home=home, cwd=workdir)
    assert finished.returncode == 2
    assert finished.stderr == 'amplifier: the prompt is empty; pass one: amplifier run "…"\n'
    finished = run_in_shell(
        "<&-", "run", "say hello", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    )
    assert (finished.returncode, finished.stdout) == (0, "hello \n")
