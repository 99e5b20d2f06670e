"""Read the remaining steps of an interrupted rebase, merge or cherry-pick."""

from __future__ import annotations

import contextlib
import os
import re

import attrs

from ._git_files import Finding, digest_of_text, git_folders, packed_refs, read_text

# When a person continues such an operation, git writes into the work tree, and runs hooks and
# filters from there at once.

_MAX_FILE = 64 << 20
"""Maximum size of a file with steps. A patch is as large as its commit."""
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
    """The commits in the steps of a file.

    Attributes:
        commits: The commits that are applied again as single changes.
        trees: The commits that are checked out, with their whole history.
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
        # `git rebase --continue` refuses to continue a `git am`.
        if not os.path.lexists(f"{folder}/rebase-apply/applying"):
            with contextlib.suppress(OSError):
                entries = os.listdir(f"{folder}/rebase-apply")  # noqa: PTH208 — text
                names += [
                    f"rebase-apply/{name}" for name in entries if name.isdigit() or name == "next"
                ]
        for name in names:
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                text = f"{read_text(path, _MAX_FILE)}\n{read_text(f'{folder}/HEAD')}"
                steps = read_steps(path)
                if len(steps.trees) > 1 or not all(map(_ID.fullmatch, steps.commits)):
                    # A label may have any name, and the commit of a name can change.
                    text += "".join(_refs(git_folder) for git_folder in sorted({git, folder}))
                result.append(Finding(path, "", "file", digest_of_text(text)))
    return result


def _refs(folder: str) -> str:
    """Return all refs of a git folder as a text."""
    refs = dict(packed_refs(folder))
    for inner, _, names in os.walk(f"{folder}/refs"):
        for name in names:
            path = f"{inner}/{name}"
            refs[path.removeprefix(folder)] = read_text(path) or ""
    return "".join(f"{name} {value}\n" for name, value in sorted(refs.items()))


def read_steps(path: str) -> Steps:
    """Read the steps of a file from `pending`."""
    text, steps = read_text(path, _MAX_FILE), Steps()
    if path.endswith((*_STASHES, *_TODOS, _NEXT)):
        # git merges each step with the present tree, even if files were renamed.
        _read_head(path, steps)
    if text is None:
        steps.is_clear = False
    elif path.endswith(_NEXT):
        pass
    elif path.endswith(_STASHES):
        stash = text.strip()
        steps.is_clear = _ID.fullmatch(stash) is not None
        # The index and the untracked files are separate commits.
        steps.commits += [stash, f"{stash}^2", f"{stash}^3"] if steps.is_clear else []
    elif path.endswith(_TODOS):
        head = steps.trees
        steps.trees = []
        for line in text.splitlines():
            _read_step(line, steps)
        # The labels are those of the work tree that is being rebased. git may run in another one.
        folder = os.path.dirname(os.path.dirname(path))  # noqa: PTH120 — text in, text out
        labels = f"{folder}/refs/rewritten"
        commits = [(read_text(f"{labels}/{label}") or "").strip() for label in steps.trees]
        steps.trees += [f"refs/rewritten/{label}" for label in steps.trees]
        steps.trees += [*filter(_ID.fullmatch, commits), *head]
    elif not os.path.lexists(f"{os.path.dirname(path)}/rebasing"):  # noqa: PTH120 — text in
        # git applies the patch itself.
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
    name, *arguments = line.split() or [""]
    arguments = [argument for argument in arguments if not argument.startswith("-")]
    if name in _ONE_COMMIT:
        revisions = arguments[:1]
        steps.commits += revisions
    elif name in _WHOLE_TREES:
        revisions = arguments[: arguments.index("#")] if "#" in arguments else arguments
        steps.trees += revisions
    else:
        return
    steps.is_clear &= bool(revisions) and all(map(_REVISION.fullmatch, revisions))
