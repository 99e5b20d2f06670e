"""Read the remaining steps of an interrupted rebase, merge or cherry-pick."""

from __future__ import annotations

import contextlib
import os
import re

import attrs

from ._git_files import Finding, digest_of_text, git_folders, read_text

# A person who continues such an operation lets git write into the work tree, and git runs hooks and
# filters from there at once.

_MAX_FILE = 64 << 20
"""Maximum size of a file with steps. A patch is as large as its commit."""
_STASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
_TODOS = ("rebase-merge/git-rebase-todo", "sequencer/todo")
_ONE_COMMIT = frozenset(
    (*("p", "pick", "r", "reword", "e", "edit", "s", "squash"), *("f", "fixup", "revert"))
)
_WHOLE_TREES = frozenset(("t", "reset", "m", "merge"))
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAIL = re.compile(r"From ([0-9a-f]{40}(?:[0-9a-f]{24})?) ")
_REVISION = re.compile(r"[0-9A-Za-z_][\w/-]*(?:\.[\w/-]+)*")


@attrs.define
class Steps:
    """The commits in the steps of a file.

    Attributes:
        commits: The commits that are applied again, one change each.
        trees: The commits that are checked out with their whole history.
        is_clear: True if every step could be read.
    """

    commits: list[str] = attrs.field(factory=list)
    trees: list[str] = attrs.field(factory=list)
    is_clear: bool = True


def pending(git: str) -> list[Finding]:
    """Return the files with steps in a git folder and in those of its submodules and worktrees.

    Args:
        git: The folder, as a real path.
    """
    result = list[Finding]()
    for folder in git_folders(git):
        names = [*_STASHES, *_TODOS]
        if os.path.lexists(f"{folder}/rebase-apply/rebasing"):
            with contextlib.suppress(OSError):
                entries = os.listdir(f"{folder}/rebase-apply")  # noqa: PTH208 — text
                names += [f"rebase-apply/{name}" for name in entries if name.isdigit()]
        for name in names:
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                text = read_text(path, _MAX_FILE)
                result.append(Finding(path, "", "file", digest_of_text(text or "")))
    return result


def read_steps(path: str) -> Steps:
    """Read the steps of a file from `pending`."""
    text, steps = read_text(path, _MAX_FILE), Steps()
    if text is None:
        steps.is_clear = False
    elif path.endswith(_STASHES):
        stash = text.strip()
        steps.is_clear = _ID.fullmatch(stash) is not None
        # The index and the untracked files are separate commits.
        steps.commits += [stash, f"{stash}^2", f"{stash}^3"] if steps.is_clear else []
    elif path.endswith(_TODOS):
        for line in text.splitlines():
            _read_step(line, steps)
    elif (mail := _MAIL.match(text)) is not None:
        steps.commits.append(mail[1])
    else:
        steps.is_clear = False
    return steps


def _read_step(line: str, steps: Steps) -> None:
    name, *arguments = line.split() or [""]
    arguments = [argument for argument in arguments if not argument.startswith("-")]
    if name in _ONE_COMMIT:
        revisions = arguments[:1]
        steps.commits += revisions
    elif name in _WHOLE_TREES:
        revisions = arguments[: arguments.index("#")] if "#" in arguments else arguments
        for revision in revisions:
            steps.trees += [revision, f"refs/rewritten/{revision}"]
    else:
        return
    steps.is_clear &= bool(revisions) and all(map(_REVISION.fullmatch, revisions))
