"""Brings everything that the tests need besides Python packages, two at a time: ``make parts``.

In a new clone it also lets pytest compile the test files once. Otherwise each worker of the first run would compile all of them.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests._support.tree import ROOT

# The longest first.
PARTS = ["mcp_servers", "node_parts", "browser", "small_model", "bubblewrap"]


def commands() -> list[list[str]]:
    """What is to be run, the longest first."""
    parts = [["-m", f"tests._support.{name}"] for name in PARTS]
    if any(ROOT.joinpath("tests", "__pycache__").glob(f"*.{sys.implementation.cache_tag}-pytest-*.pyc")):
        return parts
    return [["-m", "pytest", "--collect-only", "-qqq", "-p", "no:cacheprovider"], *parts]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def main() -> int:
    """Run all of them; the exit code is 0 if each succeeded."""
    with ThreadPoolExecutor(2) as pool:
        finished = list(pool.map(run, commands()))
    for each in finished:
        if each.returncode or "pytest" not in each.args:
            sys.stdout.write(each.stdout)
        sys.stderr.write(each.stderr)
    return max(each.returncode for each in finished)


if __name__ == "__main__":
    sys.exit(main())
