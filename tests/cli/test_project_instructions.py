"""AGENTS.md and CLAUDE.md: whose are read, in which order, how much, and that they are text for the model and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amplifier.cli.agent.default_plan import SYSTEM_PROMPT, build_plan
from amplifier.cli.agent.project_instructions import MOST_BYTES, find_instructions
from tests._support.terminal import run_cli


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A folder two levels below the root of a repository; the file above that root belongs to someone else."""
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    folder = tmp_path / "repository" / "package" / "module"
    folder.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text("not ours")
    return folder


def test_the_nearest_come_last_and_the_search_ends_at_the_root_of_the_repository(project):
    (project / "AGENTS.md").write_text("nearest\x1b[2J")
    (project.parents[1] / "AGENTS.md").write_text("outermost")
    (project.parents[1] / "CLAUDE.md").write_text("another")
    (project.parent / "CLAUDE.md").symlink_to("../AGENTS.md")
    found = find_instructions(project)
    assert found.files == ("../../CLAUDE.md", "../CLAUDE.md", "AGENTS.md")
    assert [part in found.text for part in ("outermost", "another", "nearest[2J", "not ours", "\x1b")] == [
        *[True] * 3,
        *[False] * 2,
    ]
    assert found.text.index("another") < found.text.index("outermost") < found.text.index("nearest")
    assert found.text.count("outermost") == 1
    assert not found.problems


@pytest.mark.parametrize(("home", "expected"), [(".", ("../AGENTS.md",)), ("elsewhere", ())])
def test_outside_of_a_repository_the_search_ends_at_the_home_folder(home, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / home))
    (tmp_path / "AGENTS.md").write_text("mine")
    (tmp_path / "work").mkdir()
    assert find_instructions(tmp_path / "work").files == expected


def test_what_is_no_small_regular_file_of_the_project_is_named_and_not_read(project):
    (project / "AGENTS.md").symlink_to("/etc/passwd")
    os.mkfifo(project / "CLAUDE.md")
    (project.parent / "AGENTS.md").write_bytes(b"x" * (MOST_BYTES + 1))
    (project.parent / "CLAUDE.md").write_bytes(b"\xff")
    (project.parents[1] / "AGENTS.md").symlink_to("AGENTS.md")
    found = find_instructions(project)
    assert (found.text, found.files) == ("", ())
    assert [problem.partition(" is not read: ")[0] for problem in found.problems] == [
        "AGENTS.md",
        "CLAUDE.md",
        "../AGENTS.md",
        "../CLAUDE.md",
        "../../AGENTS.md",
    ]
    assert "a FIFO" in found.problems[1]


def test_all_files_together_are_limited_and_the_nearest_has_its_place(project):
    (project / "AGENTS.md").write_text("n" * (MOST_BYTES - 10))
    (project.parent / "AGENTS.md").write_text("too much by now")
    found = find_instructions(project)
    assert found.files == ("AGENTS.md",)
    assert found.problems == ("../AGENTS.md is not read: it has 15 bytes, expected at most 10",)


def test_variables_and_braces_in_instructions_stay_text_and_the_switch_leaves_them_out(project):
    (project / "AGENTS.md").write_text("key ${ANTHROPIC_API_KEY} {directory}")
    made = build_plan({"provider-offline"}, environment={"ANTHROPIC_API_KEY": ""}, directory=project)
    prompt = made.plan["session"]["orchestrator"]["config"]["system_prompt"]
    assert prompt.endswith("from AGENTS.md:\n\nkey ${ANTHROPIC_API_KEY} {directory}")
    without = build_plan({"provider-offline"}, environment={}, directory=project, project_instructions=False)
    assert without.plan["session"]["orchestrator"]["config"]["system_prompt"] == SYSTEM_PROMPT.format(directory=project)


def test_a_run_names_the_files_and_warns_about_those_it_does_not_read(backend, home, workdir):
    (workdir / "AGENTS.md").write_text("be kind")
    (workdir / "CLAUDE.md").mkdir()
    arguments = ("run", "hello", "-p", "offline", "--backend", backend)
    finished = run_cli(*arguments, home=home, cwd=workdir)
    assert finished.returncode == 0
    assert "instructions of the project: AGENTS.md\n" in finished.stderr
    assert "CLAUDE.md is not read: it is a directory, expected a regular file\n" in finished.stderr
    assert "instructions" not in run_cli(*arguments, "--no-project-instructions", home=home, cwd=workdir).stderr
    shown = json.loads(run_cli("plan", "show", home=home, cwd=workdir).stdout)
    assert shown["session"]["orchestrator"]["config"]["system_prompt"].endswith("be kind")
