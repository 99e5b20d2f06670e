"""Finds what a rebase, a merge or a cherry-pick that has not ended is still to write into the work tree.

A person who goes on with it has git write there, and git runs hooks and filters from there at once.
"""

from __future__ import annotations

import contextlib
import os
import re

import attrs

from ._git_files import Finding, digest_of_text, git_folders, packed_refs, read_text

_MAX_FILE = 64 << 20
"""A patch is as large as its commit."""
_STASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
_TODOS = ("rebase-merge/git-rebase-todo", "sequencer/todo")
_NEXT = "rebase-apply/next"
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
        # `git rebase --continue` refuses to go on with what `git am` began.
        if not os.path.lexists(f"{folder}/rebase-apply/applying"):
            with contextlib.suppress(OSError):
                listed = os.listdir(f"{folder}/rebase-apply")  # noqa: PTH208 - text
                names += [
                    f"rebase-apply/{name}" for name in listed if name.isdigit() or name == "next"
                ]
        for name in names:
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                text = f"{read_text(path, _MAX_FILE)}\n{read_text(f'{folder}/HEAD')}"
                steps = steps_in(path)
                if len(steps.trees) > 1 or not all(map(_ID.fullmatch, steps.commits)):
                    # A label may have any name, and what names stand for can be changed as well.
                    text += "".join(_refs(each) for each in sorted({git, folder}))
                found.append(Finding(path, "", "file", digest_of_text(text)))
    return found


def _refs(folder: str) -> str:
    """Return all refs of a git folder as a text."""
    refs = dict(packed_refs(folder))
    for inner, _, names in os.walk(f"{folder}/refs"):
        for name in names:
            path = f"{inner}/{name}"
            refs[path.removeprefix(folder)] = read_text(path) or ""
    return "".join(f"{name} {value}\n" for name, value in sorted(refs.items()))


def steps_in(path: str) -> Steps:
    """Return the steps of a file that `pending` found."""
    text, steps = read_text(path, _MAX_FILE), Steps()
    if path.endswith((*_STASHES, *_TODOS, _NEXT)):
        # What is there already is merged with each step, also under another name.
        _read_head(path, steps)
    if text is None:
        steps.is_clear = False
    elif path.endswith(_NEXT):
        pass
    elif path.endswith(_STASHES):
        stash = text.strip()
        steps.is_clear = _ID.fullmatch(stash) is not None
        # The index and the untracked files are commits of their own.
        steps.commits += [stash, f"{stash}^2", f"{stash}^3"] if steps.is_clear else []
    elif path.endswith(_TODOS):
        head = steps.trees
        steps.trees = []
        for line in text.splitlines():
            _read_step(line, steps)
        # The labels are those of the work tree that is rebased, which may be another one than git is asked in.
        labels = f"{os.path.dirname(os.path.dirname(path))}/refs/rewritten"  # noqa: PTH120 - text in
        found = [(read_text(f"{labels}/{word}") or "").strip() for word in steps.trees]
        steps.trees += [f"refs/rewritten/{word}" for word in steps.trees]
        steps.trees += [*filter(_ID.fullmatch, found), *head]
    elif not os.path.lexists(f"{os.path.dirname(path)}/rebasing"):  # noqa: PTH120 - text in
        # git takes the patch itself.
        steps.is_clear = False
    elif (mail := _MAIL.match(text)) is not None:
        steps.commits.append(mail[1])
    else:
        steps.is_clear = False
    return steps


def _read_head(path: str, steps: Steps) -> None:
    folder = next(
        path.removesuffix(f"/{name}")
        for name in (*_STASHES, *_TODOS, _NEXT)
        if path.endswith(f"/{name}")
    )
    head = (read_text(f"{folder}/HEAD") or "").strip().removeprefix("ref: ")
    if _ID.fullmatch(head) or head.startswith("refs/heads/"):
        steps.trees.append(head)
    else:
        steps.is_clear = False


def _read_step(line: str, steps: Steps) -> None:
    name, *words = line.split() or [""]
    words = [word for word in words if not word.startswith("-")]
    if name in _ONE_COMMIT:
        named = words[:1]
        steps.commits += named
    elif name in _WHOLE_TREES:
        named = words[: words.index("#")] if "#" in words else words
        steps.trees += named
    else:
        return
    steps.is_clear &= bool(named) and all(map(_REVISION.fullmatch, named))
