"""Programs that the agent itself starts: where they are looked for, and how a second Python is started.

What an agent executes outside of a sandbox must not come from a folder that its own commands can change, nor from the repository
it happens to work in. Therefore a program is looked up in a search path without relative, empty and working-directory entries,
and a second Python gets neither the current folder nor a script's folder on its import path.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
"""The folder that this package is imported from."""


def find_program(
    name: str, *, path: str | None = None, avoid: Iterable[str | Path] = ()
) -> str | None:
    """The absolute path of a program on the search path; None if there is none that can be trusted.

    Args:
        name: Its name, without a folder.
        path: The search path; that of this process if absent.
        avoid: Folders it must not come from, in addition to the current one and the repository around it.
    """
    return shutil.which(name, path=safe_search_path(path, avoid=avoid))


def safe_search_path(path: str | None = None, *, avoid: Iterable[str | Path] = ()) -> str:
    """A search path of the folders that can be trusted."""
    return (
        os.pathsep.join(search_folders(path, avoid=avoid)) or os.devnull
    )  # an empty one means the current folder


def search_folders(path: str | None = None, *, avoid: Iterable[str | Path] = ()) -> list[str]:
    """The entries of a search path without relative and empty ones, and without those that lie in the working directory.

    The environment of the running Python stays, also in the working directory: this process is executed from there.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    kept = []
    untrusted = [os.path.realpath(folder) for folder in (*_surroundings(), *avoid)]
    for entry in path.split(os.pathsep):
        if os.path.isabs(entry):  # noqa: PTH117 - text in, text out
            real = os.path.realpath(entry)
            places = (
                real,
                os.path.normpath(entry),
            )  # a link in the working directory can be replaced
            if is_below(real, os.path.realpath(sys.prefix)) or not any(
                is_below(place, each) for place in places for each in untrusted
            ):
                kept.append(entry)
    return kept


def open_in_browser(address: str) -> bool:
    """Show a page in the user's browser, which is started from trusted folders only; returns whether one could be started."""
    import webbrowser  # noqa: PLC0415 — few commands open one

    before = os.environ.get("PATH")
    os.environ["PATH"] = safe_search_path()
    try:
        return webbrowser.open(address)
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


def _surroundings() -> Iterator[str]:
    """The current folder, and the repository that it is a part of."""
    try:
        folder = Path.cwd()
    except OSError:  # it was deleted
        return
    if folder != Path(folder.anchor):
        yield str(folder)
    for parent in folder.parents:
        if parent != Path(parent.anchor) and (parent / ".git").exists():
            yield str(parent)


def python_command(*arguments: str) -> list[str]:
    """The command line of a Python with the packages of this one, and with nothing from the current folder."""
    return [sys.executable, "-P", *arguments]


def isolated_python() -> str:
    """The Python below any virtual environment, for programs that use the standard library only; empty if unknown."""
    return (
        os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        if sys.executable
        else ""
    )


def isolated_python_command(*arguments: str) -> list[str]:
    """The command line of a Python without packages, environment variables and start-up files."""
    return [isolated_python(), "-I", "-S", *arguments]


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or something in it; both are absolute, and compared as text."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
