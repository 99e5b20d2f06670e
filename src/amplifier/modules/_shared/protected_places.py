"""The list of files that programs outside a sandbox run or read automatically."""

# Why the list contains names: a program that starts automatically finds its files by name, in any
# folder that a person opens. So an entry applies at any depth, and to names that do not exist yet.
# A few places have no fixed name, such as a bare repository or a file that git's configuration
# names. A search of the file system finds these. Names are compared without regard to case and
# invisible characters, because some file systems ignore them. A false alarm costs one question.
#
# Why "ask" and not "refuse": people do want `.vscode/settings.json` changed. The agent's own code
# is different, because one "yes" given by mistake would be enough to change it.
#
# The sandbox, the file tools and the approval rules use the list, and check real paths against it.

from __future__ import annotations

import functools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from amplifier._internal.programs import PACKAGE, find_program, is_below, isolated_python
from amplifier.contracts import Coordinator
from amplifier.errors import PlanError

from .configuration import list_of, option, record
from .git_configuration import named_by_configuration
from .place_sweep import Sweep, fold, is_git_layout, repositories_above
from .session import default_sessions_directory, working_directory
from .started_places import started_places

# ── the list ──────────────────────────────────────────────────────────────────────────────────────

_GIT = "git runs programs that its files name"
_VERSIONS = "version control runs programs that its files name"
_AGENT = "agents start programs, servers and hooks that it names"
_EDITOR = "editors start programs that it names"
_SERVER = "language servers run what it names"
_SHELL = "shells run it when someone enters the folder"
_HOOKS = "git runs it when someone commits"
_PACKAGES = "package managers load code that it names"
_TOOLCHAIN = "it names programs that prompts and editors start"
_PYTHON = "Python runs it whenever it starts"
_LOGIN = "a login, a shell or a desktop obeys it"

ENTRIES: Final = {
    ".git": _GIT,
    # A working copy of Subversion names no program, so `.svn` is not among them.
    **dict.fromkeys((".hg", ".jj", ".sl", "_darcs", ".bzr", ".pijul"), _VERSIONS),
    **dict.fromkeys((".fslckout", "_FOSSIL_", ".fossil-settings"), _VERSIONS),
    ".amplifier": _AGENT,
    **dict.fromkeys(
        (".mcp.json", ".mcp", ".agents", ".agent", ".claude", ".claude.json", ".claude-plugin"),
        _AGENT,
    ),
    **dict.fromkeys(
        (".codex", ".gemini", ".qwen", ".opencode", "opencode.json", "opencode.jsonc"), _AGENT
    ),
    **dict.fromkeys(
        (
            ".crush.json",
            "crush.json",
            ".crush",
            ".cursor",
            ".windsurf",
            ".kiro",
            ".roo",
            ".roomodes",
        ),
        _AGENT,
    ),
    **dict.fromkeys(
        (".cline", ".clinerules", ".kilocode", ".kilocodemodes", ".openhands", ".continue"), _AGENT
    ),
    **dict.fromkeys(
        (".continuerc.json", ".aider*.yml", ".amazonq", ".augment", ".junie", ".trae", ".factory"),
        _AGENT,
    ),
    **dict.fromkeys(
        (".goose", ".copilot", ".github/hooks", ".github/agents", ".pi", ".vibe", ".kimi", ".grok"),
        _AGENT,
    ),
    **dict.fromkeys(
        (".amp", ".qoder", ".lingma", ".iflow", ".warp", ".rovodev", ".serena", ".zencoder"), _AGENT
    ),
    **dict.fromkeys(
        (".codebuddy", ".tabnine", ".firebender", "firebender.json", "gptme.toml"), _AGENT
    ),
    # It contains scripts to run when a work tree is opened.
    "conductor.json": _AGENT,
    **dict.fromkeys((".vscode", "*.code-workspace", ".vscode-server", ".vs"), _EDITOR),
    **dict.fromkeys(
        (".idea", ".ijwb", ".aswb", ".clwb", ".run", ".fleet", ".zed", ".nova", ".helix"), _EDITOR
    ),
    **dict.fromkeys(
        (".lapce", ".theia", ".devcontainer*", ".codesandbox", ".stackblitzrc", ".replit"), _EDITOR
    ),
    **dict.fromkeys(
        (".gitpod.y*ml", "*.sublime-project", "*.sublime-workspace", ".kateproject*"), _EDITOR
    ),
    **dict.fromkeys(
        (".vim", ".vimrc", "_vimrc", ".nvim", ".nvimrc", ".exrc", "_exrc", ".gvimrc"), _EDITOR
    ),
    **dict.fromkeys(
        (".nvim.lua", ".lazy.lua", ".lvimrc", ".dir-locals.el", ".dir-locals-2.el"), _EDITOR
    ),
    # Emacs runs the Lisp code in this file when it restores a desktop.
    ".emacs.desktop": _EDITOR,
    # These name builders and annotation processors, which Eclipse and other editors with its Java
    # tools run.
    **dict.fromkeys(
        (".project", ".settings", ".externalToolBuilders", ".classpath", ".factorypath"), _EDITOR
    ),
    **dict.fromkeys(("nbproject", ".spyproject", "*.Rproj", ".Rprofile", ".RData"), _EDITOR),
    # Language servers run a command line or code in these when a file is opened.
    **dict.fromkeys(
        ("rust-analyzer.toml", ".rust-analyzer.toml", ".neoconf.json", ".nlsp-settings"), _SERVER
    ),
    **dict.fromkeys(
        (".luarc.json*", ".bsp", "buildServer.json", ".sourcekit-lsp", "omnisharp.json"), _SERVER
    ),
    **dict.fromkeys(
        (".lsp", "hie.yaml", ".merlin", ".clangd", ".ccls", ".ycm_extra_conf.py"), _SERVER
    ),
    ".ropeproject": _SERVER,
    # These name plugins of a compiler, and of language servers for Ruby and JavaScript.
    **dict.fromkeys((".bloop", ".solargraph.yml", ".tern-project"), _SERVER),
    **dict.fromkeys(
        (
            ".envrc",
            ".direnv",
            ".direnvrc",
            ".autoenv",
            ".autoenv*.zsh",
            ".autoenv.leave",
            ".env.leave",
        ),
        _SHELL,
    ),
    **dict.fromkeys(
        (".mise", ".mise*.toml", ".mise.*.toml", "mise.toml", "mise.*.toml", ".rtx*.toml"), _SHELL
    ),
    **dict.fromkeys(
        ("mise/config*.toml", "mise/conf.d", ".config/mise", ".config/mise*.toml"), _SHELL
    ),
    **dict.fromkeys(
        (".miserc.toml", ".rvmrc", ".shadowenv.d", ".bash_enter", ".bash_leave"), _SHELL
    ),
    # A version in this file may be `path:./bin`.
    ".tool-versions": _SHELL,
    # A shell runs the first file, and reads variables from the second and paths or commands from
    # the others.
    **dict.fromkeys((".phpbrewrc", ".ruby-env", ".versions.conf", ".sdkmanrc"), _SHELL),
    **dict.fromkeys(
        (".husky", ".huskyrc*", ".githooks", ".git-hooks", ".lefthook", ".lefthook-local"), _HOOKS
    ),
    **dict.fromkeys(("lefthook.*", ".lefthook.*", "lefthook-local.*", ".lefthook-local.*"), _HOOKS),
    **dict.fromkeys(
        (
            ".config/lefthook*",
            ".pre-commit-config.y*ml",
            "prek.toml",
            "hk.pkl",
            "hk.local.pkl",
            ".config/hk.pkl",
            ".config/hk.local.pkl",
        ),
        _HOOKS,
    ),
    **dict.fromkeys(
        (".overcommit.yml", ".local-overcommit.yml", ".lintstagedrc*", "lint-staged.config.*"),
        _HOOKS,
    ),
    **dict.fromkeys(
        (".simple-git-hooks.*", "simple-git-hooks.*", ".rusty-hook.toml", "captainhook*.json"),
        _HOOKS,
    ),
    **dict.fromkeys(("grumphp.y*ml*", ".grumphp.y*ml*"), _HOOKS),
    **dict.fromkeys(
        (".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins", ".yarn/sdks"), _PACKAGES
    ),
    **dict.fromkeys((".npmrc", ".pnpmfile.*js", "bunfig.toml", ".bundle/config"), _PACKAGES),
    **dict.fromkeys((".cargo/config", ".cargo/config.toml"), _TOOLCHAIN),
    **dict.fromkeys(
        ("rust-toolchain", "rust-toolchain.toml", ".prototools", "global.json"), _TOOLCHAIN
    ),
}
"""Names that are protected at any depth, with the reason. ``a/b`` means a ``b`` in any ``a``."""

# Commands such as `pip install` have to change these, so the sandbox does not protect them.
_ENTRIES_FOR_FILE_TOOLS: Final = {
    **dict.fromkeys((".venv", "site-packages/*.pth", "dist-packages/*.pth"), _PYTHON),
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py"), _PYTHON),
}

_OF_HOME: Final = (
    *(
        ".profile",
        ".login",
        ".inputrc",
        ".pam_environment",
        ".xprofile",
        ".xinitrc",
        ".xsession",
        ".xsessionrc",
    ),
    *(
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".bash_aliases",
        ".cshrc",
        ".tcshrc",
        ".kshrc",
    ),
    *(
        ".zshrc",
        ".zshenv",
        ".zprofile",
        ".zlogin",
        ".zlogout",
        ".gitconfig",
        ".emacs",
        ".emacs.d",
        ".tmux.conf",
    ),
    *(
        ".ssh",
        ".gnupg",
        ".config",
        ".local/bin",
        ".local/share/applications",
        ".local/share/systemd",
    ),
    *(".cargo/bin", ".cargo/env", "Library/LaunchAgents", "Library/Application Support"),
    *("bin", ".bash_completion", ".local/share/bash-completion", ".zsh", ".oh-my-zsh"),
    *(".p10k.zsh", ".fzf.bash", ".fzf.zsh", ".dmrc", ".xbindkeysrc", ".local/share/fish"),
)
"""Files in a home folder that a login, a shell or a desktop reads."""


# The maximum number of folders in a root that are searched for one write. A home folder has more.
_MAX_FOLDERS: Final = 20_000


@attrs.frozen
class Judgement:
    """The decision about a change of a place.

    Attributes:
        verdict: ``"none"`` if the place isn't protected, ``"ask"`` if a person has to allow the
            change, ``"refuse"`` if it is never allowed.
        reason: The reason for the protection, as the rest of a sentence. Empty without protection.
    """

    verdict: Literal["none", "ask", "refuse"]
    reason: str = ""


ASIDE: Final = ".amplifier-aside"
"""Suffix of files that were moved aside in their folder. No program reads such a name."""

UNPROTECTED: Final = Judgement("none")
_STARTED: Final = "the agent runs it when it starts, because its plan names it"

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
        added: Further names, as in `ENTRIES`, or absolute paths that need permission.
        allowed: Names or absolute paths that need no permission. Changes to the agent's own code
            are refused nevertheless.
        started: Absolute paths that the plan makes the agent run when it starts.
        sweep: Finds the places in a folder.
    """

    added: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    sweep: Sweep = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(Sweep, takes_self=True)
    )

    def judge(self, path: str, *, root: str = "/") -> Judgement:
        """Decide about a change to a file or folder, which need not exist.

        This blocks while it searches the repositories around the place, and the folders in the root
        that have changed since the last call.

        Args:
            path: The real path, which is absolute and has no symbolic link above its last name.
            root: The real path of the folder that a person gave to the agent. Its own name and the
                names above it protect nothing, because people use working directories such as
                `~/.cursor/worktrees/x`.
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
        for place in self.started:
            if is_below(path, place):
                return Judgement("ask", _STARTED)
        reason = _reason_by_name(names, _ENTRIES_FOR_FILE_TOOLS)
        if reason is None:
            reason = _reason_by_place(path, root)
        if reason is None and (repository := _bare_repository(path, root)) is not None:
            reason = f"{repository} is a git repository, and {_GIT}"
        if reason is None:
            reason = self._reason_by_leader(path, root)
        return UNPROTECTED if reason is None else Judgement("ask", reason)

    def _reason_by_leader(self, path: str, root: str) -> str | None:
        """Return the reason for the protection of a place that something else leads to."""
        if root != "/" and is_below(path, root):
            led = self.sweep.look([root], max_folders=_MAX_FOLDERS).led
        else:
            led = {
                place: f"{folder}/.git"
                for folder in repositories_above(path)
                for place in named_by_configuration(folder)
            }
        folded = _folded_path(path)
        for place, leader in led.items():
            if is_below(folded, _folded_path(place)):
                return f"{leader} leads programs to it"
        return None

    def reason_for(self, path: str) -> str:
        """Return the reason why the name of a place protects it, or an empty text."""
        if path in self.started:
            return _STARTED
        reason = _reason_by_name(_folded_names(path), {}, only_last=True)
        return reason or (_LOGIN if path in _places_of_home(_home()) else "")

    def may_be_entry(self, name: str) -> bool:
        """Check whether a name can be the last one of an entry in any folder."""
        return _may_be_entry(name) or any(
            _ends_with(pattern, name) for pattern in (*self.added, *self.started)
        )

    def is_entry(self, path: str) -> bool:
        """Check whether a path is the top of a place that commands must not change."""
        names = _folded_names(path)
        if self.is_allowed(path) or path.endswith(ASIDE):
            return False
        reason = _reason_by_name(names, {}, only_last=True)
        return (
            reason is not None
            or path in self.started
            or path in _places_of_home(_home())
            or any(_matches(pattern, path, names, only_last=True) for pattern in self.added)
        )

    def is_allowed(self, path: str) -> bool:
        """Check whether the plan leaves a path unprotected."""
        return bool(self.allowed) and any(
            _matches(pattern, path, _folded_names(path)) for pattern in self.allowed
        )

    def names_after(self, name: str) -> tuple[str, ...]:
        """Return the second names of two-part entries, such as ``hooks`` for ``.github``."""
        return _NAMES_AFTER.get(fold(name), ())


def protected_places(coordinator: Coordinator) -> ProtectedPlaces:
    """Return the list of a session, from the key ``session.protected_places`` of its plan.

    Raises:
        PlanError: The value of the key is invalid.
    """
    config: Any = getattr(coordinator, "config", None)
    session = config.get("session") if isinstance(config, dict) else None
    value = session.get("protected_places") if isinstance(session, dict) else None
    started = started_places(config, str(working_directory(coordinator, Path.cwd())))
    if value is None:
        return ProtectedPlaces(started=started)
    try:
        setting = record(_Setting, "a mapping with add and allow").read(value)
    except PlanError as error:
        problems = [
            (f"$.session.protected_places{path.removeprefix('$')}", text)
            for path, text in error.problems
        ]
        raise PlanError(problems) from None
    return ProtectedPlaces(setting.add, setting.allow, started)


# ── the agent's own ───────────────────────────────────────────────────────────────────────────────


def own_places() -> tuple[str, ...]:
    """Return the real paths that the agent itself runs and imports.

    No program that the agent confines may change them.
    """
    # The agent's folders stay the same in one process, but a program may change its PATH.
    return _own_places(os.environ.get("PATH", os.defpath))


@functools.lru_cache(maxsize=8)
def _own_places(search_path: str) -> tuple[str, ...]:
    base = (sys.base_prefix, sys.base_exec_prefix)
    # A whole virtual environment belongs to the agent, but a base such as /usr is shared.
    own = [prefix for prefix in (sys.prefix, sys.exec_prefix) if prefix not in base]
    own += [f"{prefix}/{name}" for prefix in base for name in ("bin", "lib", "lib64")]
    own += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [
        *site.getsitepackages(),
        site.getusersitepackages(),
        PACKAGE,
        isolated_python(),
        sys.executable,
    ]
    own += [
        program
        for name in ("bwrap", "rg", "bash")
        if (program := find_program(name, path=search_path))
    ]
    real = dict.fromkeys(os.path.realpath(path) for path in own if path)
    return tuple(
        path for path in real if not any(is_below(path, other) for other in real if other != path)
    )


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def _folded_names(path: str) -> tuple[str, ...]:
    return tuple(fold(name) for name in path.split("/") if name)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> tuple[re.Pattern[str], ...]:
    # Brackets in an entry are part of the file name, not a wildcard.
    return tuple(
        re.compile(translate(fold(name).replace("[", "[[]"))) for name in pattern.split("/") if name
    )


@functools.lru_cache(maxsize=4096)
def _folded_path(path: str) -> str:
    return "/".join(map(fold, path.split("/")))


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
    """Check whether a path is at or below a name or path from the plan."""
    if pattern.startswith(("/", "~/")):
        named = str(Path(pattern).expanduser())
        # The path may be a link, so its target counts as well.
        places = (os.path.normpath(named), os.path.realpath(named))
        return any(path == place if only_last else is_below(path, place) for place in places)
    return _ends_at(pattern, names, only_last=only_last)


@functools.lru_cache(maxsize=4096)
def _ends_with(pattern: str, name: str) -> bool:
    """Check whether a name can be the last one of a name or path from the plan."""
    last = pattern.rstrip("/").rpartition("/")[2]
    if not pattern.startswith(("/", "~/")):
        return _compiled(last)[0].match(fold(name)) is not None
    return name in (last, os.path.realpath(Path(pattern).expanduser()).rpartition("/")[2])


_LITERAL: Final = {fold(entry): entry for entry in ENTRIES if not {"*", "/"} & set(entry)}
_PATTERNS: Final = tuple(entry for entry in ENTRIES if {"*", "/"} & set(entry))
_LAST_NAMES: Final = frozenset(
    fold(entry.rsplit("/", 1)[-1]) for entry in ENTRIES if "*" not in entry
)
_LAST_PATTERNS: Final = re.compile(
    "|".join(translate(fold(entry)) for entry in ENTRIES if "*" in entry)
)


_LAST_OF_HOME: Final = frozenset(name.rsplit("/", 1)[-1] for name in _OF_HOME)
_NAMES_AFTER: Final[dict[str, tuple[str, ...]]] = {}
for _entry in ENTRIES:
    if "/" in _entry:
        _first, _, _last = _entry.partition("/")
        _NAMES_AFTER[_first] = (*_NAMES_AFTER.get(_first, ()), _last)


def _may_be_entry(name: str) -> bool:
    if name.endswith(ASIDE):
        return False
    if name in _LAST_OF_HOME:
        return True
    last = name.lower() if name.isascii() else fold(name)
    return last in _LAST_NAMES or _LAST_PATTERNS.match(last) is not None


def _reason_by_name(
    names: Sequence[str], more: Mapping[str, str], *, only_last: bool = False
) -> str | None:
    for name in names[-1:] if only_last else names:
        if (entry := _LITERAL.get(name)) is not None:
            return f"{entry}: {ENTRIES[entry]}"
    for entry in (*_PATTERNS, *more):
        if _ends_at(entry, names, only_last=only_last):
            return f"{entry}: {more.get(entry) or ENTRIES[entry]}"
    return None


def _reason_by_place(path: str, root: str) -> str | None:
    """Return the reason to protect a place that is specific to this machine or user."""
    home = _home()
    of_home = _places_of_home(home) if is_below(path, home) else ()
    if any(is_below(path, place) and not is_below(root, place) for place in of_home):
        return _LOGIN
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


def _home() -> str:
    return _real_home(os.environ.get("HOME", ""))


@functools.lru_cache(maxsize=8)
def _real_home(_variable: str) -> str:
    return os.path.realpath(Path.home())


@functools.lru_cache(maxsize=8)
def _places_of_home(home: str) -> frozenset[str]:
    return frozenset(f"{home}/{name}" for name in _OF_HOME)


def _search_path() -> Iterator[str]:
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if entry.startswith("/"):
            yield entry


# ── git ───────────────────────────────────────────────────────────────────────────────────────────


def _bare_repository(path: str, root: str) -> str | None:
    """Return a folder above a path that is a repository, or would become one with this path."""
    folder, _, name = path.rpartition("/")
    while folder and (is_below(folder, root) or not is_below(path, root)):
        if is_git_layout([*_existing(folder), name]):
            return folder
        folder, _, name = folder.rpartition("/")
    return None


def _existing(folder: str) -> list[str]:
    return [
        name
        for name in ("HEAD", "commondir", "objects", "refs")
        if os.path.lexists(f"{folder}/{name}")
    ]
