"""The instructions that a project has for agents: ``AGENTS.md`` and ``CLAUDE.md`` of the working folder and the folders above it.

They are text for the model and nothing else: no part of them is executed, imported or followed to another file. The search ends at
the root of the repository or, outside of one, at the home folder, so that no one else's file from ``/tmp`` gets in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from amplifier._json import sanitize_text, visible_text
from amplifier._regular_file import read_file

__all__ = ["ProjectInstructions", "find_instructions", "project_root"]

NAMES: Final = ("AGENTS.md", "CLAUDE.md")
MOST_BYTES: Final = 32 * 1024
"""Of one file, and of all of them."""


@attrs.frozen
class ProjectInstructions:
    """What was found.

    Attributes:
        files: The files that were read, the outermost first, as seen from the working folder.
        problems: The files that were not read, with the reason.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def find_instructions(directory: Path) -> ProjectInstructions:
    """Read the instructions for an agent that works in a folder; the nearest come last, and count most."""
    folders = _folders(directory)
    texts: dict[str, str] = {}  # by their text: CLAUDE.md is often a link to AGENTS.md, or a copy of it
    problems: list[str] = []
    left = MOST_BYTES
    for number, folder in enumerate(folders):  # the nearest first, so that it is not the one for which there is no room
        for name in NAMES:
            shown = visible_text("../" * number + name, multiline=False)
            try:
                # A link that leaves the project could hand a key of the user to the model.
                if not (folder / name).resolve(strict=True).is_relative_to(folders[-1]):
                    problems.append(f"{shown} is not read: it is a link to a file outside of {folders[-1]}")
                    continue
                data = read_file(folder / name, most=left)
                text = sanitize_text(data.decode("utf-8")).strip()
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                problems.append(visible_text(f"{shown} is not read: {reason}", multiline=False))
                continue
            if text and text not in texts:
                texts[text] = shown
                left -= len(data)
    if not texts:
        return ProjectInstructions(problems=tuple(problems))
    parts = [f"Instructions of this project, from {shown}:\n\n{text}" for text, shown in reversed(texts.items())]
    return ProjectInstructions("\n\n".join(parts), tuple(reversed(texts.values())), tuple(problems))


def _folders(directory: Path) -> list[Path]:
    """The folder, then those above it, to the root of its repository or the user's home folder; only itself if it is below neither."""
    here = directory.resolve()
    chain = [here, *here.parents]
    tops = [folder for folder in chain if (folder / ".git").exists()][:1] or [
        folder for folder in chain if folder == _home()
    ]
    return chain[: chain.index(tops[0]) + 1] if tops else [here]


def project_root(directory: Path) -> Path:
    """The repository of a folder; outside of one, the folder itself."""
    folders = _folders(directory)
    return folders[-1] if (folders[-1] / ".git").exists() else folders[0]


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (RuntimeError, OSError):
        return None
