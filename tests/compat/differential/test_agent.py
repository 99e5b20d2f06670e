"""The agent of published-style modules on the published kernel and on ours: the same events, messages, requests and endings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..agent_play import SCENARIOS
from ..published_agent import write_agent
from .conftest import ROOT


class Stage:
    """A kernel in a process of its own, with the agent's modules beside it."""

    def __init__(self, python: str, directory: Path, **environment: str) -> None:
        directory.mkdir()
        write_agent(directory)
        self._process = subprocess.Popen(
            [python, "-m", "tests.compat.agent_play", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def play(self, scenario: str, loop: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([scenario, loop]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended over {scenario!r}"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def stages(reference_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, Stage]]:
    """The published kernel and ours."""
    place = tmp_path_factory.mktemp("agent")
    published = Stage(reference_python, place / "published")
    ours = Stage(sys.executable, place / "ours", AMPLIFIER_COMPAT="1")
    yield published, ours
    published.close()
    ours.close()


@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_agent_plays_every_scenario_alike(stages: tuple[Stage, Stage], scenario: str, loop: str):
    published, ours = (comparable(stage.play(scenario, loop)) for stage in stages)
    assert ours == published


def comparable(seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen, without what differs on purpose; see docs/reference/compat.md."""
    events = []
    for event, data in seen["events"]:
        data.pop({"session:end": "status", "cancel:completed": "stopped"}.get(event), None)
        # The kernel reports a request to stop, too; and failures when hook modules can hear of them, in its own words.
        if event != "module:load_failed" and not (event == "cancel:requested" and "grace" in data):
            events.append([event, data])
    failed = {data["module_id"] for event, data in seen["events"] if event == "module:load_failed"}
    return {**seen, "events": events, "failed": sorted(failed), "handlers": seen["handlers"][0]}
