"""The one list of places that programs outside of a sandbox run or obey by themselves.

The sandbox, the file tools and the approval rules read it. Each judges a place by its real path.
"""

# Why the list is about names: a tool that starts by itself finds its files by name, in whatever
# folder a person opens. So an entry holds at any depth, and for names that do not exist yet. The
# few places without a name of their own (a bare repository, what git's configuration names) are
# recognised by a look at the file system. Names are compared without case and without invisible
# characters, because some file systems do so: a false alarm costs a question.
#
# Why "ask" and not "refuse": people do want `.vscode/settings.json` changed. The agent's own code
# is different. A question about it could be answered with "yes" by mistake only once.

from __future__ import annotations

import functools
import os
import re
import site
import stat
import sys
import sysconfig
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from amplifier._internal.programs import PACKAGE, find_program, is_below, isolated_python
from amplifier.contracts import Coordinator
from amplifier.errors import PlanError

from .configuration import list_of, option, record
from .session import default_sessions_directory

# ── the list ──────────────────────────────────────────────────────────────────────────────────────

_GIT = "git runs programs that its files name"
_AGENT = "agents start programs, servers and hooks that it names"
_EDITOR = "editors start programs that it names"
_SHELL = "shells run it when someone enters the folder"
_HOOKS = "git runs it when someone commits"
_PACKAGES = "package managers load code that it names"
_TOOLCHAIN = "it names programs that prompts and editors start"
_PYTHON = "Python runs it whenever it starts"

ENTRIES: Final = {
    ".git": _GIT,
    **dict.fromkeys((".hg", ".jj", ".sl"), "version control runs programs that its files name"),
    ".amplifier": _AGENT,
    ".mcp.json": _AGENT,
    **dict.fromkeys((".agents", ".claude", ".claude.json", ".codex", ".gemini", ".qwen", ".opencode"), _AGENT),
    **dict.fromkeys(("opencode.json", "opencode.jsonc", ".crush.json", "crush.json"), _AGENT),
    **dict.fromkeys((".cursor", ".windsurf", ".kiro", ".roo", ".cline", ".clinerules"), _AGENT),
    **dict.fromkeys((".continue", ".aider.conf.yml", ".amazonq", ".augment", ".junie"), _AGENT),
    **dict.fromkeys((".trae", ".factory", ".goose", ".copilot", ".github/hooks"), _AGENT),
    **dict.fromkeys((".vscode", "*.code-workspace", ".vscode-server", ".vs"), _EDITOR),
    **dict.fromkeys((".idea", ".run", ".fleet", ".zed", ".nova", ".helix"), _EDITOR),
    **dict.fromkeys((".devcontainer*", ".vim", ".vimrc", ".nvimrc", ".exrc", ".gvimrc"), _EDITOR),
    **dict.fromkeys((".nvim.lua", ".lvimrc", ".dir-locals.el", ".dir-locals-2.el"), _EDITOR),
    **dict.fromkeys((".envrc", ".direnv", ".autoenv", ".autoenv.zsh"), _SHELL),
    **dict.fromkeys((".mise", ".mise.toml", "mise.toml", ".mise.*.toml", "mise.*.toml"), _SHELL),
    **dict.fromkeys((".config/mise", ".config/mise.toml", ".tool-versions"), _SHELL),
    **dict.fromkeys((".husky", ".githooks", ".lefthook", "lefthook.y*ml", ".lefthook.y*ml"), _HOOKS),
    **dict.fromkeys((".pre-commit-config.y*ml", ".overcommit.yml", ".lintstagedrc*"), _HOOKS),
    **dict.fromkeys((".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins"), _PACKAGES),
    **dict.fromkeys((".npmrc", ".pnpmfile.*js", "bunfig.toml", ".bundle/config"), _PACKAGES),
    **dict.fromkeys((".cargo/config", ".cargo/config.toml"), _TOOLCHAIN),
    **dict.fromkeys(("rust-toolchain", "rust-toolchain.toml"), _TOOLCHAIN),
}
"""Names that are protected at any depth, with the reason; ``a/b`` is a ``b`` in any ``a``."""

# Commands have to change these (`pip install`), so the sandbox does not cover them.
_ENTRIES_FOR_FILE_TOOLS: Final = {
    **dict.fromkeys((".venv", "site-packages/*.pth", "dist-packages/*.pth"), _PYTHON),
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py"), _PYTHON),
}

_OF_HOME: Final = (
    *(".profile", ".login", ".inputrc", ".pam_environment", ".xprofile", ".xinitrc", ".xsession", ".xsessionrc"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".cshrc", ".tcshrc", ".kshrc"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".gitconfig", ".emacs", ".emacs.d", ".tmux.conf"),
    *(".ssh", ".gnupg", ".config", ".local/bin", ".local/share/applications", ".local/share/systemd"),
    *(".cargo/bin", ".cargo/env", "Library/LaunchAgents", "Library/Application Support"),
)
"""Places of a home folder that a login, a shell or a desktop obeys."""


@attrs.frozen
class Judgement:
    """Whether a place may be changed without a question.

    Attributes:
        verdict: ``"none"``: it is not protected. ``"ask"``: only if a person allows it. ``"refuse"``: never.
        reason: Why it is protected, as the rest of a sentence about it; empty if it is not.
    """

    verdict: Literal["none", "ask", "refuse"]
    reason: str = ""


UNPROTECTED: Final = Judgement("none")

_patterns = list_of(
    "names such as '.envrc' or 'deploy/hooks', or absolute paths",
    lambda value: (
        isinstance(value, str)
        and bool(value.strip("/"))
        and "\0" not in value
        and not {".", ".."} & set(value.split("/"))
        and (value.startswith(("/", "~/")) or "~" not in value)
    ),
)


@attrs.frozen(kw_only=True)
class _Setting:
    """The key ``protected_places`` of the plan's section ``session``."""

    add: tuple[str, ...] = option(_patterns, default=())
    allow: tuple[str, ...] = option(_patterns, default=())


@attrs.frozen
class ProtectedPlaces:
    """The list, with the changes that a plan makes to it.

    Attributes:
        added: Further names, as in `ENTRIES`, or absolute paths; each is asked about.
        allowed: Names or absolute paths that are not asked about. The agent's own code stays refused.
    """

    added: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def judge(self, path: str, *, root: str = "/", by_command: bool = False) -> Judgement:
        """Judge a change of a file or folder, which need not exist.

        Looks at the file system for repositories on the way to it. Blocks as long as that takes.

        Args:
            path: The real path: absolute, and without a symbolic link on the way to its last name.
            root: The folder that a person gave to the agent, a real path. Its own names and those above
                it protect nothing: people have working directories such as `~/.cursor/worktrees/x`.
            by_command: Whether a command changes it: what package managers have to write is left alone.
        """
        for place in own_places():
            if is_below(path, place):
                return Judgement("refuse", f"the agent itself runs from {place}")
        if is_below(path, "/proc") or is_below(path, "/sys"):
            return UNPROTECTED
        names = _folded_names(path.removeprefix(root) if is_below(path, root) else path)
        if any(_matches(pattern, path, names) for pattern in self.allowed):
            return UNPROTECTED
        for pattern in self.added:
            if _matches(pattern, path, names):
                return Judgement("ask", f"the plan protects {pattern!r}")
        reason = _reason_by_name(names, {} if by_command else _ENTRIES_FOR_FILE_TOOLS)
        if reason is None:
            reason = _reason_by_place(path, root)
        if reason is None and (repository := _bare_repository(path, root)) is not None:
            reason = f"{repository} is a git repository, and {_GIT}"
        if reason is None and (setting := _named_by_repository(path)) is not None:
            reason = f"git's configuration {setting} names it"
        return UNPROTECTED if reason is None else Judgement("ask", reason)

    def existing_below(self, folder: str) -> list[str]:
        """Return what a command must not change in a folder: what exists now, at any depth.

        Symbolic links are not followed. A link with a protected name is returned itself, and the
        place that it leads to as well. So is what a file ``.git`` or ``commondir`` names, and what the
        configuration of a repository names, also outside of the folder. Nothing below a returned
        place is returned.

        Args:
            folder: A real path.

        Raises:
            OSError: The folder itself cannot be listed.
        """
        found: dict[str, None] = {}
        pending = [folder]
        while pending:
            here = pending.pop()
            try:
                with os.scandir(here) as listing:
                    entries = {entry.name: entry for entry in listing}
            except OSError:
                if here == folder:
                    raise
                continue
            if here != folder and is_git_layout(entries) and not self._is_allowed(here):
                found[here] = None
                continue
            if here == folder and is_git_layout(entries):
                found |= dict.fromkeys(f"{here.rstrip('/')}/{name}" for name in entries)
                continue
            for name, entry in entries.items():
                path = f"{here.rstrip('/')}/{name}"
                if (self.added or may_be_entry(name)) and self.is_entry(path):
                    found[path] = None
                    if entry.is_symlink() and os.path.exists(path):  # noqa: PTH110 - text in, text out
                        found[os.path.realpath(path)] = None
                    if _fold(name) == ".git":
                        found |= dict.fromkeys(named_by_pointer(path))
                        found |= dict.fromkeys(named_by_configuration(here))
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(path)
        return [path for path in found if not any(is_below(path, other) for other in found if other != path)]

    def is_entry(self, path: str) -> bool:
        """Check whether the last name of a path is one of the list: the top of a place that commands must not change."""
        names = _folded_names(path)
        if self._is_allowed(path, names):
            return False
        reason = _reason_by_name(names, {}, only_last=True)
        return reason is not None or any(_matches(each, path, names, only_last=True) for each in self.added)

    def _is_allowed(self, path: str, names: tuple[str, ...] | None = None) -> bool:
        names = _folded_names(path) if names is None else names
        return any(_matches(pattern, path, names) for pattern in self.allowed)


def protected_places(coordinator: Coordinator) -> ProtectedPlaces:
    """Return the list of a session, by the key ``protected_places`` of its plan's section ``session``.

    Raises:
        PlanError: The key has a wrong value.
    """
    config: Any = getattr(coordinator, "config", None)
    session = config.get("session") if isinstance(config, dict) else None
    value = session.get("protected_places") if isinstance(session, dict) else None
    if value is None:
        return ProtectedPlaces()
    try:
        setting = record(_Setting, "a mapping with add and allow").read(value)
    except PlanError as error:
        problems = [(f"$.session.protected_places{path.removeprefix('$')}", text) for path, text in error.problems]
        raise PlanError(problems) from None
    return ProtectedPlaces(setting.add, setting.allow)


# ── the agent's own ───────────────────────────────────────────────────────────────────────────────


def own_places() -> tuple[str, ...]:
    """Return what the agent itself runs and imports, as real paths: never to be changed by what it confines."""
    # A change of these would need another process; PATH is read anew, because programs change it.
    return _own_places(os.environ.get("PATH", os.defpath))


@functools.lru_cache(maxsize=8)
def _own_places(search_path: str) -> tuple[str, ...]:
    base = (sys.base_prefix, sys.base_exec_prefix)
    # A virtual environment is the agent's as a whole. Below a base such as /usr there is more.
    own = [prefix for prefix in (sys.prefix, sys.exec_prefix) if prefix not in base]
    own += [f"{prefix}/{name}" for prefix in base for name in ("bin", "lib", "lib64")]
    own += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [*site.getsitepackages(), site.getusersitepackages(), PACKAGE, isolated_python(), sys.executable]
    own += [program for name in ("bwrap", "rg", "bash") if (program := find_program(name, path=search_path))]
    real = dict.fromkeys(os.path.realpath(path) for path in own if path)
    return tuple(path for path in real if not any(is_below(path, other) for other in real if other != path))


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


@functools.lru_cache(maxsize=4096)
def _fold(name: str) -> str:
    """Return a name as the most tolerant file system compares it."""
    if name.isascii():
        return name.lower()
    normal = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in normal if unicodedata.category(character) != "Cf")


def _folded_names(path: str) -> tuple[str, ...]:
    return tuple(_fold(name) for name in path.split("/") if name)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> tuple[re.Pattern[str], ...]:
    # Brackets are parts of file names here.
    return tuple(re.compile(translate(_fold(name).replace("[", "[[]"))) for name in pattern.split("/") if name)


def _ends_at(pattern: str, names: Sequence[str], *, only_last: bool) -> bool:
    """Check whether names anywhere in a path match the names of a pattern, one after another."""
    wanted = _compiled(pattern)
    size = len(wanted)
    first = len(names) - size if only_last else 0
    return any(
        all(part.match(name) for part, name in zip(wanted, names[at : at + size], strict=True))
        for at in range(max(first, 0), len(names) - size + 1)
    )


def _matches(pattern: str, path: str, names: Sequence[str], *, only_last: bool = False) -> bool:
    """Check whether a path is at, or below, what a plan names."""
    if pattern.startswith(("/", "~/")):
        place = os.path.realpath(Path(pattern).expanduser())
        return path == place if only_last else is_below(path, place)
    return _ends_at(pattern, names, only_last=only_last)


_LITERAL: Final = {_fold(entry): entry for entry in ENTRIES if not {"*", "/"} & set(entry)}
_PATTERNS: Final = tuple(entry for entry in ENTRIES if {"*", "/"} & set(entry))
_LAST_NAMES: Final = frozenset(_fold(entry.rsplit("/", 1)[-1]) for entry in ENTRIES if "*" not in entry)
_LAST_PATTERNS: Final = re.compile("|".join(translate(_fold(entry)) for entry in ENTRIES if "*" in entry))


def may_be_entry(name: str) -> bool:
    last = name.lower() if name.isascii() else _fold(name)
    return last in _LAST_NAMES or _LAST_PATTERNS.match(last) is not None


def _reason_by_name(names: Sequence[str], more: Mapping[str, str], *, only_last: bool = False) -> str | None:
    for name in names[-1:] if only_last else names:
        if (entry := _LITERAL.get(name)) is not None:
            return f"{entry}: {ENTRIES[entry]}"
    for entry in (*_PATTERNS, *more):
        if _ends_at(entry, names, only_last=only_last):
            return f"{entry}: {more.get(entry) or ENTRIES[entry]}"
    return None


def _reason_by_place(path: str, root: str) -> str | None:
    """Return why a place that only this machine has is protected."""
    home = os.path.realpath(Path.home())
    of_home = [f"{home}/{name}" for name in _OF_HOME] if is_below(path, home) else []
    if any(is_below(path, place) and not is_below(root, place) for place in of_home):
        return "a login, a shell or a desktop obeys it"
    state = [str(default_sessions_directory().parent), os.environ.get("AMPLIFIER_HOME", "")]
    if any(is_below(path, os.path.realpath(folder)) for folder in state if folder):
        return "the agent keeps its state there"
    configuration = os.path.realpath(os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config")
    if is_below(path, configuration) and not is_below(root, configuration):
        return "programs of your desktop obey it"
    folder = path.rsplit("/", 1)[0]
    if any(os.path.realpath(entry) == folder for entry in _search_path()):
        return f"{folder} is on the search path of programs"
    return None


def _search_path() -> Iterator[str]:
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if entry.startswith("/"):
            yield entry


# ── git ───────────────────────────────────────────────────────────────────────────────────────────


def is_git_layout(names: Iterable[str]) -> bool:
    """Check whether git would take a folder with these names for a repository."""
    found = {_fold(name) for name in names}
    return "head" in found and ("commondir" in found or {"objects", "refs"} <= found)


def _bare_repository(path: str, root: str) -> str | None:
    """Return the folder on the way to a path that is a repository, or would be one with this path in it."""
    folder, _, name = path.rpartition("/")
    while folder and (is_below(folder, root) or not is_below(path, root)):
        if is_git_layout([*_existing(folder), name]):
            return folder
        folder, _, name = folder.rpartition("/")
    return None


def _existing(folder: str) -> list[str]:
    return [name for name in ("HEAD", "commondir", "objects", "refs") if os.path.lexists(f"{folder}/{name}")]


def named_by_pointer(path: str) -> Iterator[str]:
    """Yield the git folders that a ``.git`` leads to, as real paths."""
    folder = os.path.realpath(path)
    if stat.S_ISREG(_mode(folder)):
        text = _text(folder)
        target = _path_in(text.removeprefix("gitdir: ")) if text.startswith("gitdir: ") else ""
        if not target:
            return
        folder = os.path.realpath(f"{os.path.dirname(folder)}/{target}" if target[0] != "/" else target)  # noqa: PTH120
        yield folder
    common = _path_in(_text(f"{folder}/commondir"))
    if common:
        yield os.path.realpath(common if common[0] == "/" else f"{folder}/{common}")


def _path_in(text: str) -> str:
    """Return the path in the text of a file of git's, which takes away ends of lines and no blanks."""
    return text.rstrip("\r\n").partition("\0")[0]


# Keys whose value is a program or a file of more configuration; the rest of the words are text.
_KEY: Final = re.compile(
    r"(?:core\.(?:hookspath|fsmonitor|editor|pager|sshcommand|askpass|gitproxy|attributesfile)"
    r"|include(?:if\..*)?\.path|(?:filter\..*)\.(?:clean|smudge|process)|diff\.(?:external|.*\.(?:textconv|command))"
    r"|merge\..*\.driver|(?:difftool|mergetool|man|browser|trailer|hook|guitool)\..*\.(?:cmd|path|command)"
    r"|gpg\.(?:.*\.)?program|credential\.(?:.*\.)?helper|pager\..*|sequence\.editor"
    r"|interactive\.difffilter|uploadpack\.packobjectshook)",
    re.IGNORECASE,
)
_WHOLE: Final = ("core.hookspath", "core.attributesfile")
_SECTION: Final = re.compile(r'^\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\](.*)$')
_LINE: Final = re.compile(r"^\s*([A-Za-z][\w-]*)\s*=\s*(.*?)\s*$")
_MAX_FILES: Final = 50


def named_by_configuration(worktree: str) -> list[str]:
    """Return the existing places that the configuration of a repository, and that of its user, names."""
    git = os.path.realpath(f"{worktree}/.git")
    folders = [git, *named_by_pointer(f"{worktree}/.git")] if os.path.lexists(git) else []
    home = os.path.realpath(Path.home())
    user = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    pending = [f"{folder}/{name}" for folder in folders for name in ("config", "config.worktree")]
    pending += [f"{user}/git/config", f"{home}/.gitconfig", "/etc/gitconfig"]
    seen: set[str] = set()
    named: dict[str, None] = {}
    while pending and len(seen) < _MAX_FILES:
        file = pending.pop()
        if file in seen:
            continue
        seen.add(file)
        for key, value in _settings(_text(file)):
            if not _KEY.fullmatch(key):
                continue
            is_file = key.startswith("include")
            words = [value] if is_file or key in _WHOLE else re.split(r"[\s'\";|&<>()=]+", value.lstrip("!"))
            for word in words:
                if "/" not in word and not is_file and key not in _WHOLE:
                    continue
                base = os.path.dirname(file) if is_file else worktree  # noqa: PTH120
                path = os.path.realpath(os.path.join(base, os.path.expanduser(word)))  # noqa: PTH111, PTH118
                is_whole = is_file or key in _WHOLE
                if word and not is_below(worktree, path) and (is_whole or stat.S_ISREG(_mode(path))):
                    named[path] = None
                    if is_file:
                        pending.append(path)
    return list(named)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a file of git's configuration, as far as a program's name needs it."""
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        rest = line
        if header := _SECTION.match(line):
            section = header[1] if header[2] is None else f"{header[1]}.{header[2]}"
            rest = header[3]
        if setting := _LINE.match(rest):
            value = setting[2]
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            yield f"{section}.{setting[1]}".lower(), value.replace('\\"', '"')


def _named_by_repository(path: str) -> str | None:
    """Return the repository whose configuration names a place, or a folder that it lies in."""
    folder = path.rsplit("/", 1)[0]
    while folder:
        if os.path.lexists(f"{folder}/.git"):
            named = named_by_configuration(folder)
            return f"of {folder}" if any(is_below(path, place) for place in named) else None
        folder = folder.rsplit("/", 1)[0]
    return None


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - text in
    except OSError:
        return 0


def _text(file: str) -> str:
    """Return the beginning of a regular file; a command may have put a pipe in its place."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return ""
    try:
        is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, 1 << 20).decode("utf-8", "surrogateescape") if is_regular else ""
    finally:
        os.close(descriptor)
