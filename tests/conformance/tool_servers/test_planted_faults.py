"""Servers with planted faults: each is found in its own tool, and nothing is found in sound ones."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from amplifier.conformance.tool_servers.run import check_tools, examination_of

HERE = Path(__file__).parent
PLANTED = f"{sys.executable} {HERE / 'planted.py'}"

FOUND = {
    ("S4", "lies"),
    ("S6", "hides_errors"),
    ("S8", "mixes"),
    ("S9", "hangs"),
    ("S10", "halves"),
    ("S10", "tears"),
    ("S11", "grows"),
    ("S14", "writes"),
    ("S15", "repeats"),
}


def examine(target: str, **options):
    return anyio.run(partial(check_tools, *examination_of(target, **options)))


@pytest.mark.slow
def test_each_fault_is_found_in_its_tool(tmp_path, monkeypatch):
    """A tool that deletes is never called, because it was skipped."""
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    skip = ["delete_everything"]
    report = examine(PLANTED, call_all=True, skip=skip, env=["PROOF"], call_seconds=3)
    found = {(each.clause, (each.input or {}).get("tool")) for each in report.violations}
    assert found == FOUND | {("S12", None)}
    assert report.verdict == "violations"
    assert not (tmp_path / "proof").exists()
    assert "left a process behind" in str(report)
    torn = next(each for each in report.violations if "torn.txt" in each.what)
    assert (
        "--call-all --skip delete_everything --replay server.stops_when_cancelled:asyncio:"
        in torn.reproduce
    )


@pytest.mark.slow
def test_a_crash_is_named_with_its_input():
    report = examine(f"{PLANTED} crash", call=["crashes"], skip=["delete_everything"])
    [found] = [each for each in report.violations if each.clause == "S5"]
    assert found.input == {"tool": "crashes", "input": {"number": 7}}
    assert "ended with exit code 3" in found.what
    replayed = found.reproduce.rpartition(" ")[2]
    again = examine(f"{PLANTED} crash", call=["crashes"], replay=replayed)
    assert [each.what for each in again.violations if each.clause == "S5"] == [found.what]


@pytest.mark.parametrize("server", ["everything", "filesystem", "memory", "time"])
@pytest.mark.slow
def test_official_servers_have_no_violation(server, tmp_path, monkeypatch):
    from tests._support.mcp_servers import node_server, python_server  # installs them

    monkeypatch.setenv("MEMORY_FILE_PATH", str(tmp_path / "memory.jsonl"))
    words = (
        [python_server("mcp-server-time")]
        if server == "time"
        else [*node_server(f"server-{server}")]
    )
    words += ["{directory}"] if server == "filesystem" else []
    # Two take ten seconds by design. The toggles start timers that keep the server running after its input has ended.
    slow = ["simulate-research-query", "trigger-long-running-operation"]
    timers = ["toggle-simulated-logging", "toggle-subscriber-updates"]
    skip = [*slow, *timers] if server == "everything" else []
    report = examine(" ".join(words), call_all=True, skip=skip, env=["MEMORY_FILE_PATH"])
    assert (report.violations, report.verdict) == ([], "conforms"), str(report)
