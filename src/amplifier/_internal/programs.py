"""Look up the programs that an agent starts, and a second Python, in trusted folders.

A program that runs outside a sandbox must not come from a folder that commands of the agent can
change, nor from the repository that it works in. So the search path has no relative or empty
entries, and none inside the working directory. A second Python has neither the current folder nor a
script's folder on its import path.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
"""The folder of this package."""


def find_program(
    name: str, *, path: str | None = None, avoid: Iterable[str | Path] = ()
) -> str | None:
    """Return the absolute path of a program, or None if there is none that can be trusted.

    Args:
        name: Name of the program, without a folder.
        path: The search path. The default is that of this process.
        avoid: Folders that are not trusted, besides the current one and the repository around it.
    """
    return shutil.which(name, path=safe_search_path(path, avoid=avoid))


def safe_search_path(path: str | None = None, *, avoid: Iterable[str | Path] = ()) -> str:
    """Return a search path of the folders that can be trusted."""
    # An empty search path would mean the current folder.
    return os.pathsep.join(search_folders(path, avoid=avoid)) or os.devnull


def search_folders(path: str | None = None, *, avoid: Iterable[str | Path] = ()) -> list[str]:
    """Return the entries of a search path that can be trusted.

    Relative and empty entries and those inside the working directory are left out. The environment
    of the running Python is trusted, because this process is executed from there.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    kept = []
    untrusted = [os.path.realpath(folder) for folder in (*_surroundings(), *avoid)]
    for entry in path.split(os.pathsep):
        if os.path.isabs(entry):  # noqa: PTH117 - text in, text out
            real = os.path.realpath(entry)
            # The entry itself is checked too, because a link in an untrusted folder can be
            # replaced.
            paths = (real, os.path.normpath(entry))
            is_own = is_below(real, os.path.realpath(sys.prefix))
            if is_own or not any(is_below(p, folder) for p in paths for folder in untrusted):
                kept.append(entry)
    return kept


def open_in_browser(address: str) -> bool:
    """Open a page in the user's browser, and return whether one could be started.

    The browser is looked up in trusted folders only.
    """
    import webbrowser  # noqa: PLC0415 — rarely needed

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
    """Yield the current folder and the repositories around it."""
    try:
        folder = Path.cwd()
    except OSError:  # the folder was deleted
        return
    if folder != Path(folder.anchor):
        yield str(folder)
    for parent in folder.parents:
        if parent != Path(parent.anchor) and (parent / ".git").exists():
            yield str(parent)


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python with this one's packages, without the current folder."""
    return [sys.executable, "-P", *arguments]


def isolated_python() -> str:
    """Return the path of the Python below the virtual environment, or an empty text.

    This is suitable for programs that use only the standard library.
    """
    if not sys.executable:
        return ""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def isolated_python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python without packages, environment and start-up files."""
    return [isolated_python(), "-I", "-S", *arguments]


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is an absolute folder or inside it, compared as text."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
