"""What a project and the user have written for agents: ``AGENTS.md`` and ``CLAUDE.md`` of the working folder and the folders above it, skills, commands.

A skill is a folder with a ``SKILL.md``. The model is told its name, description and path, and reads it when a request is about it.

They are text for the model and nothing else: no part of them is executed, imported or followed to another file. The search ends at
the root of the repository or, outside of one, at the home folder, so that no one else's file from ``/tmp`` gets in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

from amplifier._internal.json import sanitize_text, visible_text
from amplifier._internal.regular_files import read_file
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import config_folder

from .plan_files import parse_yaml

NAMES: Final = ("AGENTS.md", "CLAUDE.md")
MOST_BYTES: Final = 32 * 1024
"""Of one file, and of all of them."""
SKILL_FOLDERS: Final = (".agents/skills", ".claude/skills", ".amplifier/skills")
"""Of a project; the first two are those of other programs. The user's are in ``skills`` of the configuration folder."""
MOST_SKILLS: Final = 100
MOST_SKILL_BYTES: Final = 256 * 1024
"""Of one ``SKILL.md``: as much as tool-filesystem reads at once."""
_LONGEST_DESCRIPTION: Final = 1024
_LONGEST_COMMAND: Final = 200_000


@attrs.frozen
class ProjectInstructions:
    """What was found.

    Attributes:
        files: The files that were read, the outermost first, as seen from the working folder.
        problems: The files that were not read, with the reason.
        skills: The names of the skills.
        outside: The folders of those that are not below the working folder.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def find_instructions(directory: Path) -> ProjectInstructions:
    """Read the instructions for an agent that works in a folder; the nearest come last, and count most."""
    folders = _folders(directory)
    texts: dict[
        str, str
    ] = {}  # by their text: CLAUDE.md is often a link to AGENTS.md, or a copy of it
    problems: list[str] = []
    left = MOST_BYTES
    for number, folder in enumerate(
        folders
    ):  # the nearest first, so that it is not the one for which there is no room
        for name in NAMES:
            shown = visible_text("../" * number + name, multiline=False)
            try:
                data = read_file(resolve_inside(folder / name, folders[-1]), most=left)
                text = sanitize_text(data.decode("utf-8")).strip()
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
                reason = (
                    error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                )
                problems.append(visible_text(f"{shown} is not read: {reason}", multiline=False))
                continue
            if text and text not in texts:
                texts[text] = shown
                left -= len(data)
    parts = [
        f"Instructions of this project, from {shown}:\n\n{text}"
        for text, shown in reversed(texts.items())
    ]
    skills = _find_skills(folders, problems)
    if skills:
        listed = "\n".join(f"- {name}: {about} ({file})" for name, (about, file) in skills.items())
        parts.append(
            f"Skills. When a request is about one of them, first read its file:\n\n{listed}"
        )
    outside = [
        str(file.parent) for _, file in skills.values() if not file.is_relative_to(folders[0])
    ]
    return ProjectInstructions(
        "\n\n".join(parts),
        tuple(reversed(texts.values())),
        tuple(problems),
        tuple(skills),
        tuple(dict.fromkeys(outside)),
    )


def _find_skills(folders: list[Path], problems: list[str]) -> dict[str, tuple[str, Path]]:
    """Description and file of each skill by its name; of two with the same name the user's own counts, then the nearest."""
    found: dict[str, tuple[str, Path]] = {}
    own = config_folder() / "skills"
    for home in [own, *(folder / name for folder in folders for name in SKILL_FOLDERS)]:
        for file in sorted(home.glob("*/SKILL.md")):
            try:
                real = (
                    file.resolve(strict=True) if home == own else resolve_inside(file, folders[-1])
                )
                if not str(real).isprintable():  # the path is part of the system prompt
                    raise ValueError("its path has characters that cannot be seen")
                name, about = _read_skill(real)
                if name in found:
                    raise ValueError(f"{found[name][1]} has the same name")
            except (OSError, ValueError, RuntimeError, CommandError) as error:
                reason = (
                    error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                )
                problems.append(
                    visible_text(f"skill {file} is not used: {reason}", multiline=False)
                )
                continue
            if len(found) == MOST_SKILLS:
                problems.append(
                    f"there are more than {MOST_SKILLS} skills; those from {file} on are not used"
                )
                return found
            found[name] = (about, real)
    return found


def _read_skill(file: Path) -> tuple[str, str]:
    """The name and the description at the head of a ``SKILL.md``.

    Raises:
        OSError: It cannot be read.
        ValueError: It has no such head.
    """
    text = sanitize_text(read_file(file, most=MOST_SKILL_BYTES).decode("utf-8"))
    head, ended, _ = text.removeprefix("---\n").partition("\n---")
    about = parse_yaml(head, is_plan=False) if text.startswith("---\n") and ended else None
    values = (
        [about.get(key) for key in ("name", "description")] if isinstance(about, dict) else [None]
    )
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(
            "expected a head between two lines '---' with the texts name and description"
        )
    name, description = (
        visible_text(" ".join(str(value).split()), multiline=False) for value in values
    )
    if len(description) > _LONGEST_DESCRIPTION:
        raise ValueError(
            f"its description has {len(description)} characters, expected at most {_LONGEST_DESCRIPTION}"
        )
    return name, description


def resolve_inside(path: Path, root: Path) -> Path:
    """Return the real path of something that a project has.

    A link that leaves the project could hand a key of the user to the model.

    Raises:
        OSError: There is nothing.
        RuntimeError: Its links go in a circle.
        ValueError: A link leads out of the project.
    """
    real = path.resolve(strict=True)
    if not real.is_relative_to(root.resolve()):
        raise ValueError(f"it is a link, or below one, to a place outside of {root}")
    return real


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


def own_commands(
    directory: Path, *, taken: Sequence[str] = (), notice: Callable[[str], None] = lambda text: None
) -> dict[str, str]:
    """Return the texts of ``commands/NAME.md`` of the user, then of ``.amplifier`` in the project.

    They are text for the model and nothing else. A link of a project that leads out of it is not followed.

    Args:
        directory: The working folder.
        taken: Names that they cannot have.
        notice: Called with what is not used, and why.
    """
    found: dict[str, str] = {}
    root = project_root(directory)
    for folder in (config_folder() / "commands", root / ".amplifier" / "commands"):
        is_own = not folder.is_relative_to(root)
        try:
            paths = sorted((folder if is_own else resolve_inside(folder, root)).glob("*.md"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RuntimeError) as error:
            notice(visible_text(f"{folder} is not used: {error}", multiline=False))
            continue
        for path in paths:
            try:
                real = path if is_own else resolve_inside(path, root)
                text = sanitize_text(read_file(real, most=_LONGEST_COMMAND).decode()).strip()
                if path.stem in taken or not re.fullmatch(r"[\w-]+", path.stem):
                    raise ValueError(
                        "the chat has a command of that name"
                        if path.stem in taken
                        else "not a name"
                    )
            except (OSError, ValueError, RuntimeError) as error:
                notice(visible_text(f"{path} is not used: {error}", multiline=False))
                continue
            if text:
                found.setdefault(path.stem, text)
    return found
