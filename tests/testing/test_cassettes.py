"""`Cassette` and the pytest fixture `amplifier_cassette`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier.testing import Cassette

SUITE = """
import pytest
from amplifier import AmplifierSession

PLAN = {
    "session": {"orchestrator": "loop-basic", "context": "context-simple"},
    "providers": [{"module": "provider-mock", "config": {"responses": ["one", "two"], "when_exhausted": "error"}}],
}


@pytest.mark.anyio
{marker}
@pytest.mark.parametrize("word", ["a/b"])
async def test_talk(amplifier_cassette, word):
    async with AmplifierSession(amplifier_cassette.plan(PLAN)) as session:
        assert await session.execute("{prompt}") == "one"
"""


def run_suite(
    folder: Path, *arguments: str, marker: str = "", prompt: str = "hello"
) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(
        SUITE.replace("{marker}", marker).replace("{prompt}", prompt), encoding="utf-8"
    )
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_a_test_records_on_one_backend_and_replays_on_both(tmp_path):
    refused = run_suite(tmp_path)
    assert refused.returncode == 1
    assert "is not recorded; record it: pytest --amplifier-cassettes once" in refused.stdout
    assert "2 passed" in run_suite(tmp_path, "--amplifier-cassettes", "once").stdout
    recordings = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jsonl")]
    assert recordings == ["cassettes/test_mine/test_talk-a_b.jsonl"]
    assert "2 passed" in run_suite(tmp_path).stdout
    changed = run_suite(tmp_path, "--amplifier-cassettes", "once", prompt="goodbye")
    assert "expected 'hello', found 'goodbye'" in changed.stdout
    assert "2 passed" in run_suite(tmp_path, "--amplifier-cassettes", "new", prompt="goodbye").stdout


@pytest.mark.slow
def test_a_marker_names_the_file_and_the_mode(tmp_path):
    marker = '@pytest.mark.amplifier_cassette("talk.jsonl", mode="once")'
    assert "2 passed" in run_suite(tmp_path, marker=marker).stdout
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["talk.jsonl"]
    wrong = run_suite(tmp_path, marker='@pytest.mark.amplifier_cassette(mode="always")')
    assert "amplifier_cassette: expected one of 'none', 'once', 'new' as mode, got 'always'" in wrong.stdout


PLAN: dict[str, Any] = {
    "providers": ["provider-anthropic"],
    "agents": {"own": {"providers": ["provider-openai"]}, "same": {"description": "x"}, "broken": 5},
}


def entries(plan: dict[str, Any]) -> list[str]:
    return [each if isinstance(each, str) else each["module"] for each in plan["providers"]]


def test_a_plan_that_replays_needs_no_other_provider(tmp_path):
    (tmp_path / "a.jsonl").touch()
    made = Cassette(tmp_path / "a.jsonl", mode="once").plan(PLAN)
    assert entries(made) == entries(made["agents"]["own"]) == ["provider-replay"]
    assert "providers" not in made["agents"]["same"]
    assert PLAN["providers"] == ["provider-anthropic"]


@pytest.mark.parametrize("mode", ["once", "new"])
def test_a_plan_that_records_keeps_its_providers(tmp_path, mode):
    made = Cassette(tmp_path / "a.jsonl", mode=mode).plan(PLAN)
    assert entries(made) == ["provider-anthropic", "provider-replay"]
    assert entries(made["agents"]["own"]) == ["provider-openai", "provider-replay"]


def test_a_cassette_shows_its_state(tmp_path):
    cassette = Cassette(tmp_path / "a.jsonl", mode="new")
    assert repr(cassette).endswith("mode new, not recorded>")
    cassette.path.touch()
    assert repr(cassette).endswith("mode new, recorded>")
