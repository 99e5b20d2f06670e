"""Runs tests as an ordinary user where this process is root.

Python, its packages or the project may lie where only root can look. So the tests run in a mount namespace of their own, in which
each closed folder on the way to them is an empty, open one with nothing but what they need.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests._support.tree import ROOT

USER = 65534

# Each argument before "--" is a closed folder and what is needed of it, separated by colons.
_SCRIPT = r"""
set -e
while [ "$1" != -- ]; do
    closed=${1%%:*} rest=${1#*:}
    shift
    aside=$(mktemp -d)
    mount --rbind "$closed" "$aside"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    old=$IFS; IFS=:
    for path in $rest; do
        mkdir -p "$closed/$path"
        mount --rbind "$aside/$path" "$closed/$path"
    done
    IFS=$old
    umount -l "$aside"
done
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
"""


def _needed() -> list[Path]:
    prefixes = {sys.base_prefix, sys.prefix, os.path.realpath(sys.prefix), str(ROOT)}
    linked = {os.path.realpath(each) for each in ROOT.iterdir() if each.is_symlink()}
    return [Path(path) for path in sorted(prefixes | linked)]


def _closed(path: Path) -> Path | None:
    """Return the highest folder on the way to a path that others may not pass through."""
    return next(
        (each for each in reversed([path, *path.parents]) if not each.stat().st_mode & 0o001), None
    )


def _covers() -> Iterator[str]:
    found: dict[Path, list[Path]] = {}
    for path in _needed():
        if (closed := _closed(path)) is not None:
            found.setdefault(closed, []).append(path.relative_to(closed))
    for closed, paths in found.items():
        yield ":".join([str(closed), *map(str, paths)])


def run_tests(*arguments: str, backend: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as an ordinary user, in a temporary folder and with a home of its own.

    Args:
        arguments: Of pytest.
        backend: What async tests run on.
    """
    with tempfile.TemporaryDirectory(prefix="amplifier-user-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        given = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", *arguments]
        command = [sys.executable, "-m", "pytest", *given]
        if os.geteuid() == 0:
            for path in (folder, folder / "home"):
                os.chown(path, USER, USER)
            command = [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh"),
                *(*_covers(), "--", *command),
            ]
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "TMPDIR": name,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_BACKENDS": backend,
        }
        return subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )
