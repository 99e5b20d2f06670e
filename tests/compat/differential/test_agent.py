"""The agent of published-style modules on the published kernel and on ours: the same events, messages, requests and endings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ..agent_play import SCENARIOS
from ..published_agent import write_agent
from .kernels import Kernel, both_kernels


@pytest.fixture(scope="module")
def kernels(
    reference_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Kernel, Kernel]]:
    """The published kernel and ours, each with the agent's modules in a folder of its own."""
    programs = []
    for name in ("published", "ours"):
        directory = tmp_path_factory.mktemp(name)
        write_agent(directory)
        programs.append(("-m", "tests.compat.agent_play", str(directory)))
    with both_kernels(reference_python, *programs) as found:
        yield found


@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_agent_plays_every_scenario_alike(kernels: tuple[Kernel, Kernel], scenario: str, loop: str):
    published, ours = (comparable(kernel.ask(json.dumps([scenario, loop]))) for kernel in kernels)
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
