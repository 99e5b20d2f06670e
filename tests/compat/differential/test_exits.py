"""SystemExit, Ctrl-C, invented cancellations and other BaseExceptions out of modules, at every place, on both kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("_exits_program.py")

ON_PURPOSE: dict[str, Any] = {
    # Sync code runs on the loop's thread here, so a KeyboardInterrupt in it is a Ctrl-C of the user's.
    "handler KeyboardInterrupt sync": "KeyboardInterrupt: planned",
    "collecting_handler KeyboardInterrupt sync": "KeyboardInterrupt: planned",
    "display_system KeyboardInterrupt sync": "KeyboardInterrupt: planned",
    "display_system KeyboardInterrupt async": "KeyboardInterrupt: planned",
    "handler_of_the_start KeyboardInterrupt sync": "KeyboardInterrupt: planned",
    "handler_of_the_end KeyboardInterrupt sync": "KeyboardInterrupt: planned",
    # All cleanups run before it is raised; the published kernel's loop is torn down at once.
    "cleanup KeyboardInterrupt async": [["first", "last"], "KeyboardInterrupt"],
    "cleanup SystemExit async": [["first", "last"], "SystemExit"],
    # A cancellation that a cleanup invents is its failure, like any other.
    "cleanup CancelledError sync": ["first", "last"],
    "cleanup CancelledError async": ["first", "last"],
}
"""What ours does where it differs; docs/reference/compat.md has a line for each."""


def outcomes(python: str, **environment: str) -> dict[str, Any]:
    ran = subprocess.run(
        [python, "-W", "ignore", str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.timeout(120)
def test_exceptions_that_are_no_exception_end_where_they_end_on_the_published_kernel(reference_python: str):
    published = outcomes(reference_python)
    ours = outcomes(sys.executable, AMPLIFIER_COMPAT="1")

    assert set(ON_PURPOSE) <= set(published)
    assert ours == {**published, **ON_PURPOSE}
    assert all(published[case] != outcome for case, outcome in ON_PURPOSE.items())
