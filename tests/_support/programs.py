"""Programs that run to their end, in a process of their own, and are looked at afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    words: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 280.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing on standard input; how it ended and what it wrote are the caller's to judge."""
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
