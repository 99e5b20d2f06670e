"""Finds what a rebase, a merge or a cherry-pick that has not ended is still to write into the work tree.

A person who goes on with it has git write there, and git runs hooks and filters from there at once.
"""

from __future__ import annotations

import contextlib
import os
import re

import attrs

from ._git_files import Finding, digest_of_text, git_folders, read_text

_MAX_FILE = 64 << 20
"""A patch is as large as its commit."""
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
    """The commits that the steps of a file name.

    Attributes:
        commits: Those whose own change is made again.
        trees: Those that are taken as a whole, with all that led to them.
        is_clear: Whether every step could be read.
    """

    commits: list[str] = attrs.field(factory=list)
    trees: list[str] = attrs.field(factory=list)
    is_clear: bool = True


def pending(git: str) -> list[Finding]:
    """Return the files with steps in a git folder, its submodules' and its worktrees'.

    Args:
        git: The folder, as a real path.
    """
    found = list[Finding]()
    for folder in git_folders(git):
        names = [*_STASHES, *_TODOS]
        if os.path.lexists(f"{folder}/rebase-apply/rebasing"):
            with contextlib.suppress(OSError):
                listed = os.listdir(f"{folder}/rebase-apply")  # noqa: PTH208 - text
                names += [f"rebase-apply/{name}" for name in listed if name.isdigit()]
        for name in names:
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                text = read_text(path, _MAX_FILE)
                found.append(Finding(path, "", "file", digest_of_text(text or "")))
    return found


def steps_in(path: str) -> Steps:
    """Return the steps of a file that `pending` found."""
    text, steps = read_text(path, _MAX_FILE), Steps()
    if text is None:
        steps.is_clear = False
    elif path.endswith(_STASHES):
        stash = text.strip()
        steps.is_clear = _ID.fullmatch(stash) is not None
        # The index and the untracked files are commits of their own.
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
    name, *words = line.split() or [""]
    words = [word for word in words if not word.startswith("-")]
    if name in _ONE_COMMIT:
        named = words[:1]
        steps.commits += named
    elif name in _WHOLE_TREES:
        named = words[: words.index("#")] if "#" in words else words
        steps.trees += [each for word in named for each in (word, f"refs/rewritten/{word}")]
    else:
        return
    steps.is_clear &= bool(named) and all(map(_REVISION.fullmatch, named))
