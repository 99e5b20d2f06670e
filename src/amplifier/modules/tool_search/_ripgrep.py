"""Asks ripgrep, where it is installed, which files may match.

It is quick on large trees but opens files by path, so a tree that changes under it may lead it outside. Therefore nothing
it prints is used except names, and those only after the file was opened and searched without it. The remaining effect
is that a file may be searched because of a file elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .._tool_base import Stop
from ._child_process import Child

_MOST_OUTPUT = 8 << 20
_NOTHING_FOUND = 1


def find_ripgrep(forbidden: Iterable[str]) -> str | None:
    """The program on the search path; not one that is where the model may write."""
    found = shutil.which("rg")
    if found is None or not Path(found).is_absolute():
        return None
    real = Path(found).resolve()
    return None if any(real.is_relative_to(root) for root in forbidden) else str(real)


def likely_files(
    program: str, directory: str, pattern: str, *, ignore_case: bool, ignored: Iterable[str], max_bytes: int, stop: Stop
) -> list[tuple[str, ...]] | None:
    """Names below a directory of files that may match; None if ripgrep cannot decide and every file has to be read.

    Raises:
        Stopped: The call was cancelled.
    """
    command = [
        program,
        "--no-config",
        "--files-with-matches",
        "--null",
        "--no-messages",
        "--no-ignore",
        "--hidden",
        "--no-require-git",
        "--threads=2",
        f"--max-filesize={max_bytes}",
        *(f"--glob=!**/{_escaped(name)}/**" for name in ignored),
        *(["--ignore-case"] if ignore_case else []),
        f"--regexp={pattern}",
        "--",
        ".",
    ]
    try:
        with contextlib.closing(Child(command, stop, cwd=directory)) as child:
            output = child.stdout.read(_MOST_OUTPUT)
            if len(output) == _MOST_OUTPUT:
                return None
            code = child.wait()
    except (OSError, ValueError):  # it cannot be started, or the pattern holds what no argument can
        return None
    stop.check()
    if code not in (0, _NOTHING_FOUND):
        return None  # a pattern that is Python's and not Rust's, or a directory it may not read
    return sorted({names for name in os.fsdecode(output).split("\0") if (names := _beneath(name))})


def _beneath(name: str) -> tuple[str, ...]:
    names = tuple(part for part in name.split("/") if part not in ("", "."))
    return () if name.startswith("/") or ".." in names else names


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[{" else character for character in name)
