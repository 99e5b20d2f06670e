"""The kernel's own tests under the oldest AnyIO and trio that are supported, and on uvloop.

Everything else runs with the newest versions, on asyncio's own loop and on trio.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests._support.oldest_versions import floors, install
from tests._support.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUNTIME, SESSION = "tests/kernel/runtime", "tests/kernel/session"


def run_tests(*folders: str, **variables: str) -> int:
    """Run tests of the kernel in a process of their own; return how many passed."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended: Any = subprocess.run(
        [*words, "-m", "not slow and not long", *folders],
        cwd=ROOT,
        env={**os.environ, "HYPOTHESIS_PROFILE": "default", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2000:]
    return int(re.findall(r"(\d+) passed", ended.stdout)[-1])


def test_kernel_passes_with_oldest_versions():
    folder = install()
    script = "import anyio, trio; from importlib.metadata import version; print(version('anyio'), version('trio'))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == list(floors().values())
    assert run_tests(RUNTIME, SESSION, PYTHONPATH=str(folder)) > 500


def test_kernel_passes_on_uvloop():
    assert run_tests(RUNTIME, TEST_BACKENDS="uvloop") > 200
