"""Run the hooks of a repository around a git call, in the sandbox and on a copy."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import attrs

from ._git_call import ADVICE, Bind, GitCall
from ._git_files import read_text, settings
from ._git_profile import filters, identity_of
from ._protected_paths import folder_of

OBJECTS = "/run/amplifier-git-objects"
"""The folder of the repository's objects for the copy."""
_MAX_FILE = 16 << 20
_MAX_INDEX = 1 << 30
_NOT_COPIED = frozenset(("objects", "hooks", "config", "config.worktree", "modules", "lfs"))
# git runs these hooks in the middle of a call, when no program can be run.
_NOT_RUN: Mapping[str, tuple[str, ...]] = {
    "am": ("applypatch-msg", "pre-applypatch", "post-applypatch"),
    "cherry-pick": ("prepare-commit-msg", "commit-msg", "post-commit"),
    "merge": ("pre-merge-commit", "prepare-commit-msg", "commit-msg"),
    "pull": ("pre-merge-commit", "prepare-commit-msg", "commit-msg", "pre-rebase", "post-rewrite"),
    "rebase": ("prepare-commit-msg", "commit-msg", "post-commit", "post-checkout", "post-rewrite"),
    "revert": ("prepare-commit-msg", "commit-msg", "post-commit"),
    "worktree": ("post-checkout",),
}
_NEVER_RUN = ("reference-transaction", "post-index-change")
_NULL = "0" * 40


def run_with_hooks(call: GitCall) -> int:
    """Run a git call and the hooks before and after it. Return the exit code."""
    parsed, hooks = call.request.parsed, Hooks(call)
    subcommand = parsed.subcommand
    is_verified = not parsed.has("--no-verify", "-n" if subcommand == "commit" else "")
    if is_verified and (code := hooks.before()) != 0:
        return code
    names = hooks.of_message() if subcommand == "commit" else []
    names = [name for name in names if is_verified or name != "commit-msg"]
    with hooks.watched() as heads:
        code = call.git(parsed.command())
        if code == 0 and names:
            code = hooks.check_message(names, heads)
    if code == 0:
        hooks.after(heads)
    if code != 0 and (filter_names := filters(map(call.path_of, call.opened))):
        call.say(
            f"the filters {', '.join(filter_names)} of this repository are programs, which can't "
            f"run here; {ADVICE}."
        )
    elif code != 0 and subcommand in ("merge", "pull") and len(parsed.rest) > 1:
        call.say(
            f"a merge of more than two branches or with another strategy needs a shell; {ADVICE}."
        )
    return code


@attrs.define
class Heads:
    """The commits of ``HEAD`` before and after a call.

    They are empty if there is no commit or no hook needs them.
    """

    before: str = ""
    after: str = ""


@attrs.frozen
class Hooks:
    """The hooks of a repository around one call."""

    _call: GitCall

    def before(self) -> int:
        """Run the hooks that may refuse the call. Return the exit code of the first that does."""
        parsed = self._call.request.parsed
        if parsed.subcommand == "commit":
            return self.run("pre-commit", stage=parsed.has("--all", "-a"), take_back=True)
        continues = {"--continue", "--abort", "--skip", "--quit"} & {*parsed.rest}
        if parsed.subcommand == "rebase" and not continues:
            return self.run("pre-rebase", *parsed.positional[:2])
        if parsed.subcommand == "push" and self.exists("pre-push"):
            return self._before_push()
        return 0

    def of_message(self) -> list[str]:
        """Return the names of the hooks that check the message of a commit."""
        return [name for name in ("prepare-commit-msg", "commit-msg") if self.exists(name)]

    def after(self, heads: Heads) -> None:
        """Run the hooks that follow a successful call, and report those that weren't run."""
        parsed = self._call.request.parsed
        subcommand, is_amended = parsed.subcommand, parsed.has("--amend")
        if subcommand == "commit":
            self.run("post-commit")
            if is_amended:
                self.run("post-rewrite", "amend", stdin=f"{heads.before} {heads.after}\n")
        elif subcommand in ("checkout", "switch"):
            is_branch = "--" not in parsed.rest and (
                heads.before != heads.after or len(parsed.positional) < 2
            )
            self.run(
                "post-checkout",
                heads.before or _NULL,
                heads.after or _NULL,
                "1" if is_branch else "0",
            )
        elif subcommand in ("merge", "pull") and heads.before != heads.after:
            self.run("post-merge", "0")
        names = [*_NOT_RUN.get(subcommand, ()), *_NEVER_RUN]
        if missed := [name for name in names if self.exists(name)]:
            self._call.say(f"hooks of the repository that were not run: {', '.join(missed)}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[Heads]:
        """Record the commits before and after the context, if a hook needs them."""
        heads = Heads()
        names = ("prepare-commit-msg", "commit-msg", "post-rewrite", "post-checkout", "post-merge")
        subcommands = ("commit", "checkout", "switch", "merge", "pull")
        is_needed = self._call.request.parsed.subcommand in subcommands and any(
            self.exists(name) for name in names
        )
        if is_needed:
            heads.before = self._head()
        yield heads
        if is_needed:
            heads.after = self._head()

    def _head(self) -> str:
        return self._call.output_of("rev-parse", "--verify", "-q", "HEAD").strip()

    # ── one hook ──

    def path(self, name: str) -> str:
        """Return the path of a hook."""
        repository = self._call.repository
        text = read_text(f"{self._opened()}/config") or ""
        folder = f"{repository.common}/hooks"
        if "hookspath" in text.lower():
            setting = dict(settings(text) or ()).get("core.hookspath")
            if setting:
                folder = os.path.join(repository.worktree, setting)  # noqa: PTH118
        return os.path.normpath(f"{folder}/{name}")

    def exists(self, name: str) -> bool:
        """Return whether git would run a hook."""
        path = self.path(name)
        return os.access(path, os.X_OK) and os.path.isfile(path)  # noqa: PTH113 — text in

    def run(
        self,
        name: str,
        *arguments: str,
        stage: bool = False,
        take_back: bool = False,
        stdin: str = "",
    ) -> int:
        """Run a hook with a copy of the repository.

        Args:
            name: The name of the hook.
            arguments: Its arguments.
            stage: True to add all tracked files to the index first.
            take_back: True to apply the changes that it makes to the index to the repository.
            stdin: Its standard input.

        Returns:
            Its exit code, or 0 if there is no such hook.
        """
        if not self.exists(name):
            return 0
        git = self._call.context.profile.git
        with self._copied() as (copy, binds, mounts), tempfile.TemporaryFile() as file:
            file.write(stdin.encode("utf-8", "surrogateescape"))
            file.seek(0)
            before = _digest(copy, self._index())
            command = [self.path(name), *arguments]
            if stage:
                add = f'{shlex.quote(git)} add -u && exec "$@"'
                command = ["/bin/sh", "-c", add, "sh", *command]
            code = self._call.in_sandbox(binds, mounts, command, file.fileno())
            if code == 0 and take_back and (after := _digest(copy, self._index())) != before:
                if after is None:
                    self._call.say(
                        f"the hook {name} of the repository left no index that can be read"
                    )
                    return 125
                code = self._take_back(copy)
        if code != 0 and name.startswith("pre-"):
            self._call.say(f"the hook {name} of the repository ended with exit code {code}")
        return code

    def check_message(self, names: Sequence[str], heads: Heads) -> int:
        """Run hooks for the message of the new commit, and undo the commit if one refuses it."""
        call = self._call
        message = call.output_of("log", "-1", "--format=%B")
        code, changed, name = 0, None, ""
        with self._copied() as (copy, binds, mounts):
            path = f"{call.repository.common}/COMMIT_EDITMSG"
            Path(copy, "COMMIT_EDITMSG").write_text(
                message, encoding="utf-8", errors="surrogateescape"
            )
            for name in names:
                source = ("message",) if name == "prepare-commit-msg" else ()
                if (code := call.in_sandbox(binds, mounts, [self.path(name), path, *source])) != 0:
                    break
            changed = _content(copy, "COMMIT_EDITMSG")
        if code == 0 and changed is None:
            call.say(f"the hook {name} of the repository left no message that can be read")
            code = 125
        if code != 0 or changed is None:
            undo = (
                ["reset", "-q", "--soft", heads.before]
                if heads.before
                else ["update-ref", "-d", "HEAD"]
            )
            self._git(*undo)
            call.say(f"the hook {name} of the repository refused the message, exit code {code}")
            return code
        if changed.decode("utf-8", "surrogateescape") != message:
            new = f"{call.scratch}/message"
            Path(new).write_bytes(changed)
            amend = ["commit", "--amend", "--allow-empty", "--no-verify", "-q", "-F", "/h/message"]
            return self._git(*amend, files={"/h/message": new})
        return 0

    def _before_push(self) -> int:
        """Run the hook pre-push with the refs of a dry run."""
        call = self._call
        parsed = call.request.parsed
        rest = [word for word in parsed.rest if word not in ("-q", "--quiet", "-v", "--progress")]
        output = call.output_of(*parsed.options, "push", "--dry-run", "--porcelain", *rest)
        rows = re.findall(r"^[ +*!-]\t([^:\t]*):([^\t]+)\t", output, re.MULTILINE)
        url = next((line[3:] for line in output.splitlines() if line.startswith("To ")), "")
        lines = list[str]()
        for source, target in rows:
            commit = (
                call.output_of("rev-parse", "--verify", "-q", source).strip() if source else _NULL
            )
            remote = call.output_of("ls-remote", url, target).split() if url else []
            old = remote[0] if remote else _NULL
            lines.append(f"{source or '(delete)'} {commit} {target} {old}\n")
        name = next(iter(parsed.positional), "origin")
        return self.run("pre-push", name, url or name, stdin="".join(lines)) if lines else 0

    def _git(self, *arguments: str, **options: Any) -> int:
        return self._call.git(arguments, directory=self._call.repository.worktree, **options)

    def _opened(self) -> str:
        return self._call.path_of(self._call.repository.common)

    def _index(self) -> str:
        repository = self._call.repository
        return os.path.normpath(f"{os.path.relpath(repository.folder, repository.common)}/index")

    @contextlib.contextmanager
    def _copied(self) -> Iterator[tuple[str, list[Bind], list[str]]]:
        """Copy the repository without its objects, which the copy borrows."""
        common, opened, scratch = self._call.repository.common, self._opened(), self._call.scratch
        copy, mounted = tempfile.mkdtemp(dir=scratch), tempfile.mkdtemp(dir=scratch)
        for entry in os.scandir(opened):
            if entry.name in _NOT_COPIED or entry.name.endswith(".lock") or entry.is_symlink():
                continue
            if entry.is_dir():
                shutil.copytree(entry.path, f"{copy}/{entry.name}", symlinks=True)
            elif entry.is_file():
                shutil.copy2(entry.path, f"{copy}/{entry.name}")
        info = Path(copy, "objects", "info")
        info.mkdir(parents=True)
        alternates = [OBJECTS]
        for line in (read_text(f"{opened}/objects/info/alternates") or "").splitlines():
            path = os.path.join(common, "objects", line)  # noqa: PTH118
            alternates.append(os.path.normpath(path))
        (info / "alternates").write_text(
            "".join(f"{path}\n" for path in alternates), encoding="utf-8"
        )
        mounts = ["--ro-bind", f"{mounted}/objects", OBJECTS, "--bind", copy, common]
        for name in ("config", "config.worktree", "hooks"):
            if os.path.lexists(f"{opened}/{name}"):
                target = Path(copy, name)
                target.mkdir() if Path(opened, name).is_dir() else target.touch()
                mounts += ["--ro-bind", f"{mounted}/{name}", f"{common}/{name}"]
        try:
            yield copy, [(common, identity_of(self._call.opened[common]), mounted)], mounts
        finally:
            for folder in (copy, mounted):
                remove_tree(folder)

    def _take_back(self, copy: str) -> int:
        """Apply the index of the copy and its new objects to the repository."""
        # Here git reads files that a hook has written, so it runs in the profile, with the copy
        # mounted there.
        files = {"/h/copy": copy}
        index = {
            "GIT_DIR": self._call.repository.common,
            "GIT_INDEX_FILE": f"/h/copy/{self._index()}",
        }
        alternates = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": "/h/copy/objects"}
        output_of = self._call.output_of
        rows = output_of("ls-files", "-s", "-z", files=files, variables=index | alternates)
        old = set(output_of("ls-files", "-s", "-z").split("\0"))
        kept = [
            row for row in rows.split("\0") if row and (not row.startswith("160000 ") or row in old)
        ]
        new = dict.fromkeys(row.split(" ", 2)[1] for row in kept if row not in old)
        with tempfile.TemporaryFile() as pack:
            options: dict[str, Any] = {
                "files": files,
                "variables": alternates,
                "output": pack.fileno(),
            }
            if (
                new
                and self._with_input("\n".join(new), "pack-objects", "-q", "--stdout", **options)
                != 0
            ):
                return 125
            pack.seek(0)
            if new and self._with_input(pack.read(), "unpack-objects", "-q") != 0:
                return 125
        self._git("read-tree", "--empty")
        return self._with_input(
            "".join(f"{row}\0" for row in kept), "update-index", "-z", "--index-info"
        )

    def _with_input(
        self, text: str | bytes, *arguments: str, output: int | None = None, **options: Any
    ) -> int:
        with tempfile.TemporaryFile() as file, Path(os.devnull).open("wb") as null:
            file.write(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
            file.seek(0)
            streams = (
                file.fileno(),
                null.fileno() if output is None else output,
                self._call.request.streams[2],
            )
            return self._git(*arguments, streams=streams, **options)


def remove_tree(path: str) -> OSError | None:
    """Remove a folder with everything in it, whatever the permissions of its folders.

    Returns:
        The error if that failed, or None.
    """
    problem: OSError | None = None
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)  # noqa: PTH101 — text in
    for folder, names, _ in os.walk(path):
        for inner in [f"{folder}/{name}" for name in names]:
            # The folder may belong to another user. The removal reports that.
            with contextlib.suppress(OSError):
                if not os.path.islink(inner):  # noqa: PTH114
                    os.chmod(inner, 0o700)  # noqa: PTH101
    for folder, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            inner = os.path.join(folder, name)  # noqa: PTH118 — text in, text out
            is_folder = name in names and not os.path.islink(inner)  # noqa: PTH114 — text in
            try:
                (os.rmdir if is_folder else os.unlink)(inner)
            except OSError as error:
                problem = error
    try:
        os.rmdir(path)  # noqa: PTH106 — text in
    except OSError as error:
        problem = problem or error
    return problem


# A hook may have replaced a file of the copy with a link, a pipe or a huge file.


@contextlib.contextmanager
def _file_in(copy: str, name: str, limit: int) -> Iterator[BufferedReader | None]:
    """Open a regular file in a copy without following links. None if it is missing or too large."""
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            top = os.open(copy, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, top)
            folder = stack.enter_context(folder_of(f"/proc/self/fd/{top}/{name}"))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            descriptor = os.open(Path(name).name, flags, dir_fd=folder)
            # Exiting the context closes the descriptor.
            opened = stack.enter_context(os.fdopen(descriptor, "rb"))
            info = os.fstat(descriptor)
            file = opened if stat.S_ISREG(info.st_mode) and info.st_size <= limit else None
        yield file


def _content(copy: str, name: str) -> bytes | None:
    with _file_in(copy, name, _MAX_FILE) as file:
        return None if file is None else file.read(_MAX_FILE)


def _digest(copy: str, name: str) -> bytes | None:
    with _file_in(copy, name, _MAX_INDEX) as file:
        return None if file is None else hashlib.file_digest(file, "sha256").digest()
