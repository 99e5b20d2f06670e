"""`Cassette` and the pytest fixture `amplifier_cassette`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ReplayMismatchError
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
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--strict-markers",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_recording_replays_on_both_backends(tmp_path):
    refused = run_suite(tmp_path)
    assert refused.returncode == 1
    assert "is not recorded; record it: pytest --amplifier-cassettes once" in refused.stdout
    assert "2 passed" in run_suite(tmp_path, "--amplifier-cassettes", "once").stdout
    recordings = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jsonl")]
    assert recordings == ["cassettes/test_mine/test_talk-a_b.jsonl"]
    assert "2 passed" in run_suite(tmp_path).stdout
    changed = run_suite(tmp_path, "--amplifier-cassettes", "once", prompt="goodbye")
    assert "expected 'hello', found 'goodbye'" in changed.stdout
    assert (
        "2 passed" in run_suite(tmp_path, "--amplifier-cassettes", "new", prompt="goodbye").stdout
    )


@pytest.mark.slow
def test_marker_names_file_and_mode(tmp_path):
    marker = '@pytest.mark.amplifier_cassette("talk.jsonl", mode="once")'
    assert "2 passed" in run_suite(tmp_path, marker=marker).stdout
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["talk.jsonl"]
    wrong = run_suite(tmp_path, marker='@pytest.mark.amplifier_cassette(mode="always")')
    assert (
        "amplifier_cassette: expected one of 'none', 'once', 'new' as mode, got 'always'"
        in wrong.stdout
    )


PLAN: dict[str, Any] = {
    "providers": ["provider-anthropic"],
    "agents": {
        "own": {"providers": ["provider-openai"]},
        "same": {"description": "x"},
        "broken": 5,
    },
}


def entries(plan: dict[str, Any]) -> list[str]:
    return [each if isinstance(each, str) else each["module"] for each in plan["providers"]]


def test_replaying_plan_needs_no_other_provider(tmp_path):
    (tmp_path / "a.jsonl").touch()
    made = Cassette(tmp_path / "a.jsonl", mode="once").plan(PLAN)
    assert entries(made) == entries(made["agents"]["own"]) == ["provider-replay"]
    assert "providers" not in made["agents"]["same"]
    assert PLAN["providers"] == ["provider-anthropic"]


@pytest.mark.parametrize("mode", ["once", "new"])
def test_recording_plan_keeps_providers(tmp_path, mode):
    made = Cassette(tmp_path / "a.jsonl", mode=mode).plan(PLAN)
    assert entries(made) == ["provider-anthropic", "provider-replay"]
    assert entries(made["agents"]["own"]) == ["provider-openai", "provider-replay"]


def test_cassette_shows_its_state(tmp_path):
    cassette = Cassette(tmp_path / "a.jsonl", mode="new")
    assert repr(cassette).endswith("mode new, not recorded>")
    cassette.path.touch()
    assert repr(cassette).endswith("mode new, recorded>")


# ── several sessions ─────────────────────────────────────────────────────────────────────────────


def mocked(*answers: str) -> dict[str, Any]:
    mock = {
        "module": "provider-mock",
        "config": {"responses": list(answers), "when_exhausted": "error"},
    }
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [mock],
    }


async def side_by_side(cassette: Cassette) -> list[str]:
    first, second = cassette.plan(mocked("one", "two")), cassette.plan(mocked("three", "four"))
    async with AmplifierSession(first) as one, AmplifierSession(second) as other:
        return [
            await one.execute("a"),
            await other.execute("a"),
            await one.execute("b"),
            await other.execute("c"),
        ]


async def one_after_the_other(cassette: Cassette) -> list[str]:
    answers = []
    for answer in ("one", "two", "three"):
        async with AmplifierSession(cassette.plan(mocked(answer))) as session:
            answers.append(await session.execute("a"))
    return answers


async def opened_at_once(cassette: Cassette) -> list[str]:
    answers = dict.fromkeys(("one", "two", "three"), "")

    async def run(answer: str) -> None:
        async with AmplifierSession(cassette.plan(mocked(answer))) as session:
            answers[answer] = await session.execute(f"say {answer}")

    async with anyio.create_task_group() as group:
        for answer in answers:
            group.start_soon(run, answer)
    return list(answers.values())


@pytest.mark.parametrize("mode", ["once", "new"])
@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        (side_by_side, ["one", "three", "two", "four"]),
        (one_after_the_other, ["one", "two", "three"]),
    ],
)
async def test_every_session_of_test_is_recorded(sessions, expected, mode, tmp_path):
    path = tmp_path / "a.jsonl"
    assert await sessions(Cassette(path, mode=mode)) == expected
    written = path.read_text()
    for again in ("none", mode):
        assert await sessions(Cassette(path, mode=again)) == expected
    assert path.read_text() == written


async def test_concurrent_sessions_are_all_recorded(tmp_path):
    path = tmp_path / "a.jsonl"
    assert await opened_at_once(Cassette(path, mode="once")) == ["one", "two", "three"]
    requests = [line for line in path.read_text().splitlines() if line.startswith('{"request"')]
    assert [line.split('"')[3] for line in requests] == ["main", "main-2", "main-3"]


async def test_single_recording_serves_several_sessions(tmp_path):
    path = tmp_path / "a.jsonl"
    async with AmplifierSession(Cassette(path, mode="once").plan(mocked("one"))) as session:
        await session.execute("a")
    replayed = Cassette(path).plan({**mocked(), "providers": []})
    async with AmplifierSession(replayed) as one, AmplifierSession(replayed) as other:
        assert [await one.execute("a"), await other.execute("a")] == ["one", "one"]


async def test_surplus_session_is_error(tmp_path):
    path = tmp_path / "a.jsonl"
    await side_by_side(Cassette(path, mode="once"))
    replayed = Cassette(path)
    await side_by_side(replayed)
    async with AmplifierSession(replayed.plan(mocked())) as third:
        with pytest.raises(
            ReplayMismatchError, match=r"this request of main-3 .* recorded for main"
        ):
            await third.execute("a")


async def test_open_sessions_share_file_without_cassette(tmp_path):
    path = tmp_path / "a.jsonl"
    entry = {"module": "provider-replay", "config": {"cassette": str(path), "mode": "once"}}
    plans = [
        {**mocked(answer), "providers": [*mocked(answer)["providers"], entry]}
        for answer in ("one", "two")
    ]
    for _ in range(2):
        async with AmplifierSession(plans[0]) as one, AmplifierSession(plans[1]) as other:
            assert [await one.execute("a"), await other.execute("a")] == ["one", "two"]
        plans = [{**plan, "providers": [entry]} for plan in plans]
