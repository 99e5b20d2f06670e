"""Brings what the tests need besides Python packages, two at a time: ``python -m tests._support.parts mcp_servers browser``.

A name is a module of this folder, which is run as a program.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests._support.tree import ROOT


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Bring one of them."""
    command = [sys.executable, "-m", f"tests._support.{name}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def main(names: list[str]) -> int:
    """Bring all of them; the exit code is 0 if each is there."""
    with ThreadPoolExecutor(2) as pool:
        finished = list(pool.map(run, names))
    for each in finished:
        sys.stdout.write(each.stdout)
        sys.stderr.write(each.stderr)
    return max(abs(each.returncode) for each in finished)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
