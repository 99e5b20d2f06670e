"""The hot paths take no more instructions than recorded: a guard against slowness that a busy machine cannot disturb.

When a change is meant to cost something, record anew: ``make bench-record``, and give the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.instructions import OWN_TOLERANCE, TOLERANCE, UNRECORDED_TOLERANCE, complaints, read_record
from tests._support.tree import ROOT


def counted(code: str) -> Any:
    """What a fresh interpreter prints as JSON; tracing and hash seeds are its own."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.timeout(900)  # callgrind makes everything fifty times slower
@pytest.mark.parametrize("options", [["--bytecodes"], pytest.param([], id="callgrind", marks=pytest.mark.long)])
def test_the_hot_paths_take_no_more_instructions_than_recorded(options):
    counts = counted(f"import sys; from benchmarks.instructions import main; sys.exit(main(['--json', *{options}]))")
    assert set(counts["bytecodes"]) == {"asyncio", "trio"}
    assert complaints(counts, read_record()) == []


_PLANTED = """
import json
from amplifier.kernel.hooks.registry import HookRegistry
from benchmarks import instructions

# The yardstick is not counted, but Python 3.12 counts nothing in the first frames that it traces in a process.
kept = (instructions.YARDSTICK, "emit, 1 handler")
instructions.HOT_PATHS = {name: instructions.HOT_PATHS[name] for name in kept}
plain = HookRegistry.emit
first, second = instructions.count_bytecodes("asyncio"), instructions.count_bytecodes("asyncio")

async def slower(self, event, data=None):
    for _ in range(100):
        pass
    return await plain(self, event, data)

HookRegistry.emit = slower
print(json.dumps([first, second, instructions.count_bytecodes("asyncio")]))
"""


def test_a_planted_slowdown_is_seen_and_nothing_else():
    first, second, slower = ({"bytecodes": {"asyncio": count}} for count in counted(_PLANTED))
    assert complaints(second, {"3.11": first}, "3.11") == []
    assert len(complaints(slower, {"3.11": first}, "3.11")) == 1


def counts_of(own: float, all_: float) -> dict[str, Any]:
    return {"bytecodes": {"trio": {"turn": {"own": own, "all": all_}}}}


@pytest.mark.parametrize(
    ("own", "all_", "number"),
    [
        (1000, 2000, 0),
        (500, 1000, 0),
        (1000 * (1 + OWN_TOLERANCE), 2000, 0),
        (1001 * (1 + OWN_TOLERANCE), 2000, 1),
        (1000, 2001 * (1 + TOLERANCE), 1),
        (1001 * (1 + OWN_TOLERANCE), 2001 * (1 + TOLERANCE), 2),
    ],
)
def test_growth_beyond_a_tolerance_is_named(own, all_, number):
    found = complaints(counts_of(own, all_), {"3.11": counts_of(1000, 2000)}, "3.11")
    assert len(found) == number
    assert all(line.startswith("turn on trio, bytecodes") for line in found)


def test_a_python_without_a_record_is_held_to_the_newest_one_loosely():
    record = {"3.9": counts_of(1, 1), "3.13": counts_of(1000, 2000)}
    assert complaints(counts_of(1000 * (1 + UNRECORDED_TOLERANCE), 2000), record, "3.14") == []
    assert len(complaints(counts_of(1001 * (1 + UNRECORDED_TOLERANCE), 2000), record, "3.14")) == 1


def test_callgrind_counts_multiples():
    before = {"callgrind on x86_64": {"asyncio": {"turn": 0.9}}}
    after = {"callgrind on x86_64": {"asyncio": {"turn": 1.0}}}
    assert len(complaints(after, {"3.11": before}, "3.11")) == 1
    assert complaints(before, {"3.11": after}, "3.11") == []
