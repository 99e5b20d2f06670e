"""Find the settings and files of a repository that make git run a program, and remove them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

import attrs

from amplifier._internal.programs import find_program

from ..._shared.git_configuration import real_path
from ..._shared.protected_places import ASIDE
from ._protected_paths import folder_of

# Commands and git calls of an agent make repositories and change git folders. Nothing in them may
# name a program for the git that a person, an editor or a prompt runs later. Only keys that are
# known to be harmless are allowed, because the list of the others grows with each version of git.
# Everything that is removed is kept in a file in the same folder.

NOT_CLEAN = "could not be made harmless"
_MAX_FILE = 1 << 20
_MAX_HOOK = 16 << 20
_MAX_LINKED = 256 << 20
_MAX_PACKED = 64 << 20
# This is the socket of git's file system monitor, which only reports changed files.
_FSMONITOR_SOCKET = "fsmonitor--daemon.ipc"


# ── configuration ─────────────────────────────────────────────────────────────────────────────────


_ANY = ("*",)
# The names of harmless settings by section. ``x.*`` is a section with a subsection, such as the
# name of a remote.
_HARMLESS: Mapping[str, tuple[str, ...]] = {
    "core": (
        *(
            "repositoryformatversion",
            "filemode",
            "bare",
            "logallrefupdates",
            "ignorecase",
            "precomposeunicode",
        ),
        *(
            "symlinks",
            "autocrlf",
            "eol",
            "safecrlf",
            "quotepath",
            "sharedrepository",
            "abbrev",
            "compression",
        ),
        *(
            "loosecompression",
            "longpaths",
            "untrackedcache",
            "preloadindex",
            "trustctime",
            "checkstat",
            "whitespace",
        ),
        *(
            "commentchar",
            "commentstring",
            "hidedotfiles",
            "protectntfs",
            "protecthfs",
            "bigfilethreshold",
        ),
        *(
            "multipackindex",
            "commitgraph",
            "sparsecheckout",
            "sparsecheckoutcone",
            "splitindex",
            "fsync",
        ),
        *(
            "fsyncmethod",
            "fsyncobjectfiles",
            "packedgitlimit",
            "packedgitwindowsize",
            "deltabasecachelimit",
        ),
        *("excludesfile", "warnambiguousrefs", "fsmonitor", "hookspath", "editor", "pager"),
    ),
    **dict.fromkeys(
        ("user", "author", "committer"), ("name", "email", "useconfigonly", "signingkey")
    ),
    "init": ("defaultbranch",),
    "extensions": (
        *(
            "objectformat",
            "partialclone",
            "worktreeconfig",
            "noop",
            "refstorage",
            "preciousobjects",
        ),
        *("compatobjectformat", "relativeworktrees"),
    ),
    "remote": ("pushdefault",),
    "remote.*": (
        *("url", "pushurl", "fetch", "push", "tagopt", "prune", "prunetags", "mirror", "promisor"),
        *("partialclonefilter", "skipdefaultupdate", "skipfetchall", "gh-resolved"),
    ),
    "branch": ("autosetupmerge", "autosetuprebase", "sort"),
    "branch.*": (
        *("remote", "merge", "rebase", "pushremote", "description"),
        *("gh-merge-base", "vscode-merge-base", "github-pr-owner-number", "base"),
    ),
    "submodule": ("active", "recurse", "fetchjobs"),
    "submodule.*": (
        "url",
        "active",
        "branch",
        "ignore",
        "fetchrecursesubmodules",
        "shallow",
        "update",
    ),
    **dict.fromkeys(
        ("advice", "color", "column", "status", "index", "feature", "rerere", "apply", "i18n"), _ANY
    ),
    **dict.fromkeys(("versionsort", "color.*", "fsck", "pretty", "oh-my-zsh"), _ANY),
    "checkout": ("defaultremote", "guess", "workers"),
    "pull": ("rebase", "ff", "twohead"),
    "push": ("default", "autosetupremote", "followtags", "recursesubmodules", "usebitmaps"),
    "fetch": (
        "prune",
        "prunetags",
        "parallel",
        "recursesubmodules",
        "unpacklimit",
        "output",
        "writecommitgraph",
    ),
    "rebase": (
        *(
            "autosquash",
            "autostash",
            "updaterefs",
            "stat",
            "missingcommitscheck",
            "abbreviatecommands",
        ),
        *("forkpoint", "backend"),
    ),
    "stash": ("showpatch", "showstat", "showincludeuntracked"),
    "clean": ("requireforce",),
    "am": ("threeway", "keepcr"),
    "tag": ("sort", "gpgsign", "forcesignannotated"),
    "commit": ("gpgsign", "cleanup", "status", "verbose"),
    "transfer": ("fsckobjects", "unpacklimit", "hiderefs"),
    "blame": ("date", "coloring", "showroot", "blankboundary"),
    "log": ("date", "decorate", "follow", "abbrevcommit", "graphcolors"),
    "format": ("pretty", "signoff", "numbered"),
    "merge": (
        *(
            "ff",
            "conflictstyle",
            "renames",
            "log",
            "stat",
            "renormalize",
            "directoryrenames",
            "renamelimit",
        ),
        *("verbosity", "autostash", "branchdesc"),
    ),
    "diff": (
        *(
            "algorithm",
            "renames",
            "renamelimit",
            "colormoved",
            "mnemonicprefix",
            "noprefix",
            "context",
        ),
        *(
            "interhunkcontext",
            "indentheuristic",
            "submodule",
            "wserrorhighlight",
            "ignoresubmodules",
            "relative",
        ),
        "statgraphwidth",
    ),
    "gc": (
        *(
            "auto",
            "autodetach",
            "autopacklimit",
            "pruneexpire",
            "worktreepruneexpire",
            "reflogexpire",
        ),
        *(
            "reflogexpireunreachable",
            "packrefs",
            "writecommitgraph",
            "aggressivedepth",
            "aggressivewindow",
        ),
    ),
    "pack": (
        "threads",
        "window",
        "depth",
        "windowmemory",
        "compression",
        "writebitmaps",
        "packsizelimit",
    ),
    "maintenance": ("auto", "strategy", "autodetach"),
    "maintenance.*": ("enabled", "schedule", "auto"),
    "receive": (
        "denycurrentbranch",
        "denynonfastforwards",
        "denydeletes",
        "advertiseatomic",
        "autogc",
    ),
    "uploadpack": (
        "allowfilter",
        "allowanysha1inwant",
        "allowreachablesha1inwant",
        "allowtipsha1inwant",
        "hiderefs",
    ),
    **dict.fromkeys(
        ("http", "http.*"), ("postbuffer", "version", "lowspeedlimit", "lowspeedtime", "useragent")
    ),
    **dict.fromkeys(("credential", "credential.*"), ("username", "usehttppath")),
    "lfs": ("repositoryformatversion",),
    "lfs.*": ("access", "locksverify"),
    "filter.*": ("clean", "smudge", "process", "required"),
    "gui": ("wmstate", "geometry"),
    "gitflow.*": _ANY,
}
_BOOLEANS = frozenset(("true", "false", "yes", "no", "on", "off", "0", "1", ""))
# These keys name a program, except with these values.
_HARMLESS_VALUES = {
    "core.fsmonitor": _BOOLEANS,
    "core.hookspath": frozenset(("/dev/null",)),
    "core.editor": frozenset(("true", ":", "cat", "vi", "vim", "nano", "emacs", "code --wait")),
    "core.pager": frozenset(("cat", "less", "", "false")),
    "filter.lfs.clean": frozenset(("git-lfs clean -- %f",)),
    "filter.lfs.smudge": frozenset(("git-lfs smudge -- %f", "git-lfs smudge --skip -- %f")),
    "filter.lfs.process": frozenset(("git-lfs filter-process", "git-lfs filter-process --skip")),
    "filter.lfs.required": _BOOLEANS,
    "pull.twohead": frozenset(("ort", "recursive")),
}
_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
_TRANSPORT = re.compile(r"[a-z0-9+.-]+::|-", re.IGNORECASE)


def is_harmless(key: str, value: str) -> bool:
    """Return whether a setting can't make git run a program.

    Args:
        key: The key as git lists it, with section and name in lower case.
        value: The value.
    """
    section, _, rest = key.lower().partition(".")
    subsection, is_named, name = rest.rpartition(".")
    names = _HARMLESS.get(f"{section}.*" if is_named else section, ())
    if name not in names and names != _ANY:
        return False
    if section == "gitflow":
        # The setting `gitflow.path.hooks` names a folder of programs.
        return subsection in ("branch", "prefix")
    if section == "submodule" and name == "update" and is_named:
        return value in _UPDATES
    if section == "remote" and name.endswith("url"):
        return not _TRANSPORT.match(value)
    if section == "filter":
        return subsection == "lfs" and value.lower() in _HARMLESS_VALUES[f"filter.lfs.{name}"]
    values = _HARMLESS_VALUES.get(f"{section}.{name}")
    return is_named != "" or values is None or value.lower() in values


@cache
def git_program() -> str | None:
    """Return the path of git, or None if git isn't on the search path."""
    path = find_program("git")
    return None if path is None else os.path.realpath(path)


def settings(text: str) -> list[tuple[str, str]] | None:
    """Return the settings of a configuration in order, as git itself reads them.

    Args:
        text: The text of the file. Files that it includes aren't read.

    Returns:
        Pairs of key and value, or None if git can't read the text.
    """
    pairs = _settings(text)
    return None if pairs is None else [*pairs]


# Each call reads the same configuration several times.
@lru_cache(maxsize=64)
def _settings(text: str) -> tuple[tuple[str, str], ...] | None:
    program = git_program()
    if program is None:
        return None
    command = [program, "config", "--file", "-", "--no-includes", "-z", "--list"]
    environment = {
        "PATH": os.defpath,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "HOME": "/nonexistent",
    }
    result = subprocess.run(
        command,
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        cwd="/",
        env=environment,
        check=False,
    )
    if result.returncode != 0:
        return None
    rows = result.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return tuple(
        (key, value if has_value else "true")
        for key, has_value, value in (row.partition("\n") for row in rows)
    )


def harmless_text(pairs: list[tuple[str, str]], folder: str | None = None) -> str:
    """Return the text of a configuration with only the harmless settings among those given.

    Args:
        pairs: The settings.
        folder: The git folder of the configuration, or None.
    """
    lines = []
    for key, value in pairs:
        if is_harmless(key, value) or _is_own_worktree(folder, key, value):
            section, _, rest = key.partition(".")
            subsection, _, name = rest.rpartition(".")
            header = f'{section} "{_escaped(subsection)}"' if subsection else section
            lines.append(f'[{header}]\n\t{name} = "{_escaped(value)}"\n')
    return "".join(lines)


def _is_own_worktree(folder: str | None, key: str, value: str) -> bool:
    """Return whether a setting is ``core.worktree`` with the git folder's own work tree.

    git would write committed files into any other folder. A link on the way is not accepted.
    """
    if folder is None or key != "core.worktree" or "\0" in value:
        return False
    real = real_path(folder)
    worktree = os.path.normpath(os.path.join(real, value))  # noqa: PTH118 — text in, text out
    pointer = f"{worktree}/.git"
    if real_path(worktree) != worktree:
        return False
    target = pointer_target(read_text(pointer) or "")
    return pointer == real or (
        target != "" and real_path(os.path.join(worktree, target)) == real  # noqa: PTH118
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


# ── findings ──────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Finding:
    """A part of a repository that names a program.

    Attributes:
        path: The file.
        reason: A description for the user.
        kind: ``"settings"`` for settings of a configuration, ``"hook"`` for an executable file,
            ``"file"`` for a whole file, ``"linked"`` for a file that can be changed through another
            name, ``"replacement"`` for a ref, in a file or packed.
        digest: A digest of the value or the content. Other content makes another finding.
    """

    path: str
    reason: str
    kind: str
    digest: str = ""


_TODO = re.compile(
    r"\s*(#.*|(p|pick|r|reword|e|edit|s|squash|f|fixup|d|drop|l|label|t|reset|m|merge|b|break|noop"
    r"|revert)(\s.*)?|(u|update-ref)\s+refs/heads/\S*\s*)?"
)
_TODOS = (
    "rebase-merge/git-rebase-todo",
    "rebase-merge/git-rebase-todo.backup",
    "rebase-merge/done",
    "sequencer/todo",
)
_NUMBERS = ("rebase-merge/msgnum", "rebase-merge/end", "rebase-apply/next", "rebase-apply/last")
_NUMBER = re.compile(r"[0-9]*\s*")
_REPLACEMENTS = "refs/replace"
# If the pattern could backtrack, sixty settings would take years.
_OPTIONS = re.compile(
    r"(?:\[options\]|\s++|(?:no-commit|edit|allow-\w++|keep-\w++|signoff|record-origin|mainline)"
    r"\s*+=\s*+\w*+)*+"
)
_STRATEGIES = frozenset(("", "ort", "recursive", "ours", "subtree", "resolve", "octopus"))


def findings(git: str) -> list[Finding]:
    """Return everything that makes git run a program.

    Args:
        git: The git folder as a real path. Those of its submodules and worktrees are searched, too.
    """
    if not os.access(git, os.R_OK | os.X_OK):
        open_up(git)
    for folder, names, _ in os.walk(git):
        # Programs can use files in a folder that can't be listed, if they know the names.
        names[:] = [name for name in names if name not in ("objects", "lfs", "annex")]
        for name in names:
            if not os.access(inner := f"{folder}/{name}", os.R_OK | os.X_OK):
                open_up(inner)
    result = [*_odd_files(git)]
    for folder in git_folders(git):
        is_worktree = folder.rpartition("/")[0].rpartition("/")[2] == "worktrees"
        for name in ("config", "config.worktree"):
            result += _in_configuration(f"{folder}/{name}")
        result += _in_hooks(f"{folder}/hooks")
        for name in _TODOS:
            result += _in_todo(f"{folder}/{name}")
        result += _in_numbers(folder)
        result += _in_replacements(folder)
        result += _in_resolutions(f"{folder}/rr-cache")
        options = f"{folder}/sequencer/opts"
        text = read_text(options)
        if os.path.lexists(options) and (text is None or not _OPTIONS.fullmatch(text)):
            result.append(Finding(options, "options that name a program", "file"))
        strategy = f"{folder}/rebase-merge/strategy"
        text = read_text(strategy)
        if os.path.lexists(strategy) and (text is None or text.strip() not in _STRATEGIES):
            result.append(Finding(strategy, f"the strategy {(text or '').strip()[:40]!r}", "file"))
        common = f"{folder}/commondir"
        if os.path.lexists(common):
            relative = path_in(read_text(common) or "")
            target = real_path(os.path.join(folder, relative))  # noqa: PTH118
            own = real_path(f"{folder}/../..")
            if not is_worktree or target != own:
                result.append(Finding(common, "it leads git to another configuration", "file"))
    return result


def open_up(path: str) -> bool:
    """Give the owner of a folder all rights to it, without following links.

    Returns:
        False if that failed.
    """
    try:
        # Any name in the folder serves to open it.
        with folder_of(f"{path}/HEAD") as folder:
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101
    except OSError:
        return False
    return True


def git_folders(git: str) -> Iterator[str]:
    """Yield a git folder, and those of its submodules and worktrees."""
    yield git
    pending = [f"{git}/modules", f"{git}/worktrees"]
    for folder in pending:  # grows
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if os.path.lexists(f"{entry.path}/HEAD") or os.path.lexists(
                    f"{entry.path}/commondir"
                ):
                    yield entry.path
                    pending += [f"{entry.path}/modules", f"{entry.path}/worktrees"]
                else:
                    pending.append(entry.path)


def _odd_files(git: str) -> Iterator[Finding]:
    """Find links and special files, because others can change later the content that git reads."""
    pending = [git]
    for folder in pending:  # grows
        # git compares objects with their names, so these folders are safe.
        skipped = ("objects", "lfs", "annex") if os.path.lexists(f"{folder}/HEAD") else ()
        entries = list[os.DirEntry[str]]()
        with contextlib.suppress(OSError), os.scandir(folder) as listing:
            entries += listing
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending += [entry.path] * (entry.name not in skipped)
            elif entry.name.endswith(ASIDE) or entry.name == _FSMONITOR_SOCKET:
                continue
            else:
                # The file may have been removed.
                with contextlib.suppress(OSError):
                    yield from _odd_file(entry)


def _odd_file(entry: os.DirEntry[str]) -> Iterator[Finding]:
    if entry.is_symlink():
        target = os.readlink(entry.path)  # noqa: PTH115
        yield Finding(entry.path, "a link in a git folder", "file", target)
    elif not entry.is_file(follow_symlinks=False):
        yield Finding(entry.path, "it is neither a file nor a folder", "file")
    elif entry.stat(follow_symlinks=False).st_nlink > 1:
        yield Finding(entry.path, "a file that has another name", "linked")


def _in_configuration(path: str) -> Iterator[Finding]:
    if not os.path.lexists(path):
        return
    text = read_text(path)
    pairs = None if text is None else settings(text)
    if pairs is None:
        yield Finding(path, "it is not a file that git can read", "file")
        return
    folder = os.path.dirname(path)  # noqa: PTH120 — text in, text out
    for key, value in pairs:
        if not is_harmless(key, value) and not _is_own_worktree(folder, key, value):
            yield Finding(path, f"{key}={value[:80]}", "settings", digest_of_text(value))


def _in_hooks(folder: str) -> Iterator[Finding]:
    if os.path.islink(folder):  # noqa: PTH114 — text in
        yield Finding(folder, "a link to other hooks", "file")
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".sample", ASIDE)):
                continue
            if entry.is_symlink():
                yield Finding(entry.path, "an executable hook", "file")
            elif entry.is_file() and entry.stat().st_mode & 0o111:
                yield Finding(entry.path, "an executable hook", "hook", _digest_of(entry.path))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_of_text(text: str) -> str:
    """Return a digest of a text from `read_text`."""
    return _digest(text.encode("utf-8", "surrogateescape"))


def _digest_of(path: str) -> str:
    """Return a digest of a file. For a large file, only its beginning, size and times count."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        )
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        digest = _digest(file.read(_MAX_HOOK)) if stat.S_ISREG(info.st_mode) else ""
    if info.st_size <= _MAX_HOOK:
        return digest
    return f"{digest} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"


def _in_todo(path: str) -> Iterator[Finding]:
    text = read_text(path)
    if text is not None:
        for line in text.splitlines():
            if not _TODO.fullmatch(line):
                yield Finding(
                    path,
                    f"the step {line.strip()[:60]!r}",
                    "file",
                    digest_of_text(line),
                )
    elif os.path.lexists(path):
        yield Finding(path, "it is not a regular file", "file")


def _in_numbers(folder: str) -> Iterator[Finding]:
    """Find text where git writes a number. Prompts show this text, and shells expand a prompt."""
    for name in _NUMBERS:
        path = f"{folder}/{name}"
        text = read_text(path)
        if os.path.lexists(path) and (text is None or not _NUMBER.fullmatch(text)):
            yield Finding(path, "it is not a number, and prompts show it", "file", _digest_of(path))


def _in_replacements(folder: str) -> Iterator[Finding]:
    """Find refs that make git read another object, or other parents, than a name stands for.

    Commits by a person would get content that the person has never seen.
    """
    packed = packed_refs(folder)
    refs = {name: value for name, value in packed if name.startswith(f"{_REPLACEMENTS}/")}
    for inner, _, names in os.walk(f"{folder}/{_REPLACEMENTS}"):
        for name in names:
            path = f"{inner}/{name}"
            refs[path.removeprefix(f"{folder}/")] = (read_text(path) or "").strip()
    for name, value in refs.items():
        reason = f"git would read {value[:64]} instead"
        yield Finding(f"{folder}/{name}", reason, "replacement", value)
    grafts = f"{folder}/info/grafts"
    if os.path.lexists(grafts):
        yield Finding(grafts, "it gives commits other parents", "file", _digest_of(grafts))


def _in_resolutions(folder: str) -> Iterator[Finding]:
    """Find recorded resolutions. git reuses them in every file with the same conflict."""
    for inner, _, names in os.walk(folder):
        for name in names:
            if name.startswith("postimage") and not name.endswith(ASIDE):
                path = f"{inner}/{name}"
                reason = "a resolved conflict, which git would reuse in any file"
                yield Finding(path, reason, "file", _digest_of(path))


def packed_refs(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the packed refs of a git folder."""
    for line in (read_text(f"{folder}/packed-refs", _MAX_PACKED) or "").split("\n"):
        value, _, name = line.partition(" ")
        if name and not value.startswith(("#", "^")):
            yield name, value


def read_text(path: str, limit: int = _MAX_FILE) -> str | None:
    """Return the text of a regular file. None for a link, another kind, or a larger file."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        )
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            return None
        return os.read(descriptor, limit).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)


def pointer_target(text: str) -> str:
    """Return the target in the text of a file ``.git``, as git reads it. Empty for other text."""
    return path_in(text.removeprefix("gitdir: ")) if text.startswith("gitdir: ") else ""


def path_in(text: str) -> str:
    """Return the path in the text of a git file. As in git, line ends are removed but no blanks."""
    return text.rstrip("\r\n").partition("\0")[0]


# ── removal ───────────────────────────────────────────────────────────────────────────────────────


def take_out(removals: list[Finding], before: dict[str, str] | None = None) -> list[str]:
    """Remove findings from their repository. The removed files are kept under other names.

    Args:
        removals: The findings.
        before: Former texts of configurations, to be restored. Other configurations lose only the
            settings that aren't harmless.

    Returns:
        A sentence about each file.
    """
    notes = list[str]()
    # A linked file is replaced with a copy before its content is changed.
    groups = dict[tuple[str, bool], list[Finding]]()
    for finding in sorted(removals, key=lambda finding: finding.kind != "linked"):
        groups.setdefault((finding.path, finding.kind == "linked"), []).append(finding)
    for (path, _), group in groups.items():
        reasons = ", ".join(dict.fromkeys(finding.reason for finding in group))
        try:
            notes.append(f"{path}: {_take_out_file(path, group[0].kind, before or {})} ({reasons})")
        except OSError as error:
            notes.append(
                f"{path} {NOT_CLEAN}: {error.strerror} ({reasons}); look at it before you run git"
            )
    return notes


def _take_out_file(path: str, kind: str, before: dict[str, str]) -> str:
    if kind == "replacement":
        _remove_ref(path)
        return "was removed"
    name = os.path.basename(path)  # noqa: PTH119 — text in, text out
    with folder_of(path) as folder:
        if not os.access(f"/proc/self/fd/{folder}", os.W_OK):
            open_up(os.path.dirname(path))  # noqa: PTH120 — text in, text out
        if kind == "hook":
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
            try:
                os.fchmod(descriptor, 0o644)
            finally:
                os.close(descriptor)
            return "is not executable any more"
        if kind == "linked":
            _separate(name, folder)
            return "was replaced with a copy that has no other name"
        text = before.get(path) if kind == "settings" else None
        if kind == "settings" and text is None:
            text = harmless_text(settings(read_text(path) or "") or [], f"/proc/self/fd/{folder}")
        aside = _aside(name, folder)
        os.replace(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        if text is None:
            return f"was renamed to {aside}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as file:  # noqa: PTH123
            file.write(text.encode("utf-8", "surrogateescape"))
    return f"lost settings that name programs; the whole file is in {aside}"


def _remove_ref(path: str) -> None:
    """Remove a ref below `_REPLACEMENTS`.

    It isn't renamed, because git would read a file of any name as a ref.
    """
    with contextlib.suppress(FileNotFoundError), folder_of(path) as folder:
        if not os.access(f"/proc/self/fd/{folder}", os.W_OK):
            open_up(os.path.dirname(path))  # noqa: PTH120 — text in, text out
        os.unlink(os.path.basename(path), dir_fd=folder)  # noqa: PTH119 — text in
    # A folder above, or a part of the ref, may have the same name.
    for match in re.finditer(f"/(?={_REPLACEMENTS}/)", path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _remove_packed(path[: match.start()], path[match.end() :])


def _remove_packed(git: str, ref: str) -> None:
    with folder_of(f"{git}/packed-refs") as folder:
        text = read_text(f"/proc/self/fd/{folder}/packed-refs", _MAX_PACKED) or ""
        kept, is_removed = list[str](), False
        for line in text.split("\n"):
            # A line with "^" names the commit of the tag in the line before.
            is_removed = is_removed if line.startswith("^") else line.partition(" ")[2] == ref
            kept += [line] * (not is_removed)
        if len(kept) == text.count("\n") + 1:
            return
        copy = f"{secrets.token_hex(8)}{ASIDE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(copy, flags, 0o644, dir_fd=folder), "wb") as file:
            file.write("\n".join(kept).encode("utf-8", "surrogateescape"))
        os.replace(copy, "packed-refs", src_dir_fd=folder, dst_dir_fd=folder)


def _separate(name: str, folder: int) -> None:
    """Replace a file with a copy that has no other name. The copy isn't executable."""
    copy = f"{secrets.token_hex(8)}{ASIDE}"
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    with os.fdopen(os.open(name, os.O_RDONLY | flags, dir_fd=folder), "rb") as source:
        info = os.fstat(source.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_LINKED:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(copy, flags, 0o644, dir_fd=folder), "wb") as target:
            shutil.copyfileobj(source, target)
    os.replace(copy, name, src_dir_fd=folder, dst_dir_fd=folder)


def _aside(name: str, folder: int) -> str:
    """Return an unused name in an open folder for a removed file."""
    try:
        os.lstat(f"{name}{ASIDE}", dir_fd=folder)
    except FileNotFoundError:
        return f"{name}{ASIDE}"
    except OSError:
        # The name may be too long.
        name = os.fsdecode(os.fsencode(name)[:150])
    return f"{name}.{secrets.token_hex(8)}{ASIDE}"


def set_aside(path: str, reason: str) -> list[str]:
    """Rename a file or folder, so that no program finds it by its name.

    Returns:
        A sentence about it.
    """
    return take_out([Finding(path, reason, "file")])
