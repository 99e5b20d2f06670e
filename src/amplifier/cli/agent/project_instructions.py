"""Instructions, skills and commands that a project and the user have written for agents."""

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
MAX_BYTES: Final = 32 * 1024
"""Maximum size of all files together."""
SKILL_FOLDERS: Final = (".agents/skills", ".claude/skills", ".amplifier/skills")
"""Folders of a project that contain skills. Other programs use the first two."""
MAX_SKILLS: Final = 100
MAX_SKILL_BYTES: Final = 256 * 1024
"""Maximum size of a ``SKILL.md``, so that tool-filesystem can read it in one call."""
_MAX_DESCRIPTION: Final = 1024
_MAX_COMMAND: Final = 200_000


@attrs.frozen
class ProjectInstructions:
    """The instructions for an agent.

    Attributes:
        text: The text for the system prompt.
        files: The paths of its files, relative to the working folder, the outermost first.
        problems: Messages about files that were not read.
        skills: The names of the skills.
        outside: The folders of skills outside of the working folder.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


# The files are only text for the model: no part of them is executed, imported or followed to
# another file. The search ends at the root of the repository or, outside of one, at the home
# folder, so that it ignores other users' files in /tmp.
def find_instructions(directory: Path) -> ProjectInstructions:
    """Read the instructions for an agent that works in a folder.

    The instructions from the nearest folder come last.
    """
    folders = _folders(directory)
    # Compare the texts, because CLAUDE.md is often a link to AGENTS.md, or a copy of it.
    texts: dict[str, str] = {}
    problems: list[str] = []
    remaining = MAX_BYTES
    # Read the nearest file first, so that it fits into the limit.
    for number, folder in enumerate(folders):
        for name in NAMES:
            shown = visible_text("../" * number + name, multiline=False)
            try:
                data = read_file(resolve_inside(folder / name, folders[-1]), most=remaining)
                text = sanitize_text(data.decode("utf-8")).strip()
            except FileNotFoundError:
                continue
            # A loop of links raises RuntimeError.
            except (OSError, ValueError, RuntimeError) as error:
                message = f"{shown} is not read: {_reason(error)}"
                problems.append(visible_text(message, multiline=False))
                continue
            if text and text not in texts:
                texts[text] = shown
                remaining -= len(data)
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


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


# A skill is a folder with a SKILL.md. The model receives the name, description and path of each,
# and reads the file when a request calls for it.
def _find_skills(folders: list[Path], problems: list[str]) -> dict[str, tuple[str, Path]]:
    """Return description and file of each skill, keyed by name.

    If several have the same name, the user's own skill takes precedence, then the nearest one.
    """
    skills: dict[str, tuple[str, Path]] = {}
    own = config_folder() / "skills"
    for home in [own, *(folder / name for folder in folders for name in SKILL_FOLDERS)]:
        for file in sorted(home.glob("*/SKILL.md")):
            try:
                is_own = home == own
                real = file.resolve(strict=True) if is_own else resolve_inside(file, folders[-1])
                # The path is part of the system prompt.
                if not str(real).isprintable():
                    raise ValueError("its path has characters that cannot be seen")
                name, about = _read_skill(real)
                if name in skills:
                    raise ValueError(f"{skills[name][1]} has the same name")
            except (OSError, ValueError, RuntimeError, CommandError) as error:
                message = f"skill {file} is not used: {_reason(error)}"
                problems.append(visible_text(message, multiline=False))
                continue
            if len(skills) == MAX_SKILLS:
                problems.append(
                    f"there are more than {MAX_SKILLS} skills; those from {file} on are not used"
                )
                return skills
            skills[name] = (about, real)
    return skills


def _read_skill(file: Path) -> tuple[str, str]:
    """Return the name and the description at the head of a ``SKILL.md``.

    Raises:
        OSError: The file can't be read.
        ValueError: The file has no such head.
    """
    text = sanitize_text(read_file(file, most=MAX_SKILL_BYTES).decode("utf-8"))
    head, ended, _ = text.removeprefix("---\n").partition("\n---")
    about = parse_yaml(head, is_plan=False) if text.startswith("---\n") and ended else None
    keys = ("name", "description")
    values = [about.get(key) for key in keys] if isinstance(about, dict) else [None]
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(
            "expected front matter between two '---' lines with the strings name and description"
        )
    name, description = (
        visible_text(" ".join(str(value).split()), multiline=False) for value in values
    )
    if len(description) > _MAX_DESCRIPTION:
        raise ValueError(
            f"its description has {len(description)} characters, "
            f"expected at most {_MAX_DESCRIPTION}"
        )
    return name, description


def resolve_inside(path: Path, root: Path) -> Path:
    """Return the real path of a file or folder of a project.

    A link that leaves the project could leak a key of the user to the model.

    Raises:
        OSError: The path doesn't exist.
        RuntimeError: Its links are a loop.
        ValueError: A link leads out of the project.
    """
    real = path.resolve(strict=True)
    if not real.is_relative_to(root.resolve()):
        raise ValueError(f"it is a link, or below one, to a place outside of {root}")
    return real


def _folders(directory: Path) -> list[Path]:
    """Return the folder and those above it, up to its repository's root or the home folder.

    For a folder outside both, return only the folder itself.
    """
    here = directory.resolve()
    chain = [here, *here.parents]
    tops = [folder for folder in chain if (folder / ".git").exists()][:1] or [
        folder for folder in chain if folder == _home()
    ]
    return chain[: chain.index(tops[0]) + 1] if tops else [here]


def project_root(directory: Path) -> Path:
    """Return the repository of a folder or, outside of one, the folder itself."""
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

    The commands are only text for the model. A link that leads out of the project isn't followed.

    Args:
        directory: The working folder.
        taken: Reserved names.
        notice: Called with a message for each file that isn't used.
    """
    commands: dict[str, str] = {}
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
                text = sanitize_text(read_file(real, most=_MAX_COMMAND).decode()).strip()
                if path.stem in taken or not re.fullmatch(r"[\w-]+", path.stem):
                    is_taken = path.stem in taken
                    raise ValueError(
                        "the chat has a command of that name" if is_taken else "not a name"
                    )
            except (OSError, ValueError, RuntimeError) as error:
                notice(visible_text(f"{path} is not used: {error}", multiline=False))
                continue
            if text:
                commands.setdefault(path.stem, text)
    return commands
