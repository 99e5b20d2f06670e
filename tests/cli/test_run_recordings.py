"""`amplifier run --record` and `--replay`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests._support.terminal import json_of, run_cli

PROMPT = "list the files"


@pytest.mark.slow
def test_recorded_run_replays_in_other_directory(backend, home, tmp_path, workdir):
    file = tmp_path / "run.jsonl"
    recorded = run_cli(
        "run", "-y", "-p", "offline", "--record", str(file), PROMPT, home=home, cwd=workdir
    )
    assert recorded.returncode == 0, recorded.stderr
    assert f"recording {file}" in recorded.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(workdir) not in file.read_text(encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    replayed = run_cli(
        "run",
        "-y",
        "--replay",
        "../run.jsonl",
        PROMPT,
        "--backend",
        backend,
        home=home,
        cwd=elsewhere,
    )
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)


@pytest.mark.long
def test_other_prompt_ends_with_difference(home, tmp_path, workdir):
    file = tmp_path / "run.jsonl"
    run_cli("run", "-y", "-p", "offline", "--record", str(file), PROMPT, home=home, cwd=workdir)
    replayed = run_cli(
        "run",
        "-y",
        "--replay",
        str(file),
        "count the files",
        "--output-format",
        "json",
        home=home,
        cwd=workdir,
    )
    assert replayed.returncode == 1
    result = json_of(replayed)
    assert result["error_type"] == "ReplayMismatchError"
    assert "expected 'list the files', found 'count the files'" in result["error"]


def test_recording_is_not_overwritten(home, tmp_path, workdir):
    file = tmp_path / "run.jsonl"
    file.write_text("precious", encoding="utf-8")
    refused = run_cli("run", "-y", "--record", str(file), PROMPT, home=home, cwd=workdir)
    assert refused.returncode == 2
    assert "exists; remove it to record again, or replay it" in refused.stderr
    assert file.read_text(encoding="utf-8") == "precious"


def test_contradictory_options_are_refused(home, tmp_path, workdir):
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps({"cassette": 1}), encoding="utf-8")
    both = run_cli(
        "run",
        "--record",
        str(tmp_path / "new"),
        "--replay",
        str(file),
        PROMPT,
        home=home,
        cwd=workdir,
    )
    assert (both.returncode, "pass one of them" in both.stderr) == (2, True)
    provider = run_cli(
        "run", "--replay", str(file), "-p", "offline", PROMPT, home=home, cwd=workdir
    )
    assert (provider.returncode, "leave out -p" in provider.stderr) == (2, True)


def test_invalid_recording_is_refused_early(home, tmp_path: Path, workdir):
    file = tmp_path / "run.jsonl"
    file.write_text("{}", encoding="utf-8")
    refused = run_cli("run", "-y", "--replay", str(file), PROMPT, home=home, cwd=workdir)
    assert refused.returncode == 2
    assert "line 1: expected" in refused.stderr
