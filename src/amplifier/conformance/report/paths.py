"""How files are named in reports: for a reader relative to where he is, for a program relative to the repository."""

from __future__ import annotations

import os
from pathlib import Path

from .outcome import Finding


def shown_location(found: Finding) -> str | None:
    """The location for a reader: below the working directory relative to it, elsewhere absolute, so that editors find it."""
    if found.file is None:
        return found.location
    file = _below(Path(found.file), Path()) or found.file
    return file if found.line is None else f"{file}:{found.line}"


def repository_path(file: str) -> str | None:
    """The path of a file from the root of its repository, with forward slashes; None if it belongs to none.

    The root is the checkout of a GitHub job that contains the file, else the nearest folder above it with a ``.git``, else the
    working directory.
    """
    path = Path(file)
    workspace = os.environ.get("GITHUB_WORKSPACE")
    checkouts = [Path(workspace)] if workspace else []
    repositories = [folder for folder in path.parents if (folder / ".git").exists()][:1]
    for root in [*checkouts, *repositories, Path()]:
        relative = _below(path, root)
        if relative is not None:
            return relative
    return None


def _below(path: Path, folder: Path) -> str | None:
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except (ValueError, OSError):
        return None
