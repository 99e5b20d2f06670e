"""The published kernel and ours, each in a process of its own that answers lines of text with lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .conftest import ROOT


class Kernel:
    """One of the two.

    Args:
        python: The interpreter that has it.
        words: The program, which answers one line after the other.
        is_ours: Whether it has the alias.
    """

    def __init__(self, python: str, *words: str, is_ours: bool) -> None:
        plain = {name: value for name, value in os.environ.items() if name != "AMPLIFIER_COMPAT"}
        self._process = subprocess.Popen(
            [python, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**plain, "AMPLIFIER_COMPAT": "1"} if is_ours else plain,
        )

    def ask(self, question: str) -> Any:
        """Its answer to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended over {question}"
        return json.loads(line)

    def close(self) -> None:
        """End it, in good order."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@contextmanager
def both_kernels(
    reference_python: str, published: tuple[str, ...], ours: tuple[str, ...]
) -> Iterator[tuple[Kernel, Kernel]]:
    """The published kernel and ours, with the arguments of both programs."""
    kernels = (
        Kernel(reference_python, *published, is_ours=False),
        Kernel(sys.executable, *ours, is_ours=True),
    )
    yield kernels
    for kernel in kernels:
        kernel.close()
