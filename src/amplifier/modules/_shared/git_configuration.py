"""Files that git runs or reads because its configuration names them."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from amplifier._internal.programs import is_below

_MAX_FILE: Final = 1 << 20
# The limit per repository. It stops the reading of files that include each other.
_MAX_FILES: Final = 50

# Keys that name a program are recognised by the end of the key, because git, its helpers and its
# later versions have many of them.
_PROGRAM: Final = re.compile(
    r"alias\..*|pager\..*"
    r"|(?:.*\.)?(?:[^.]*(?:command|cmd|program|helper|driver|editor|pager|askpass|proxy"
    r"|textconv|filter|hook)"
    r"|fsmonitor|external|clean|smudge|process|path|args|vcs|uploadpack|receivepack"
    r"|tunnel|update|url|pushurl|smtpserver)"
)
# The whole value of these keys is a file, or a folder of files.
_WHOLE: Final = frozenset(("core.hookspath", "core.attributesfile", "init.templatedir"))
_URL: Final = re.compile(r"ext::")
_VARIABLES: Final = (
    *(
        "GIT_EXTERNAL_DIFF",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_EDITOR",
        "GIT_SEQUENCE_EDITOR",
        "GIT_PAGER",
        "GIT_ASKPASS",
    ),
    *("GIT_PROXY_COMMAND", "EDITOR", "VISUAL", "PAGER", "SSH_ASKPASS"),
)
_HOOKS: Final = (
    *(
        "applypatch-msg",
        "pre-applypatch",
        "post-applypatch",
        "pre-commit",
        "pre-merge-commit",
        "prepare-commit-msg",
    ),
    *(
        "commit-msg",
        "post-commit",
        "pre-rebase",
        "post-checkout",
        "post-merge",
        "pre-push",
        "pre-receive",
        "update",
    ),
    *(
        "proc-receive",
        "post-receive",
        "post-update",
        "reference-transaction",
        "push-to-checkout",
        "pre-auto-gc",
    ),
    *("post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change"),
)
# An interpreter runs these files if a folder in its arguments contains them.
_RUN_OF_FOLDER: Final = ("__main__.py", "index.js", "package.json")


def real_path(path: str | Path) -> str:
    """Return the real path. For a link that can't be followed, this is the path of the link.

    Python fails on a very long chain of links. The operating system follows only forty links, so
    nothing can be opened through such a chain, or through a loop.
    """
    try:
        return os.path.realpath(path)
    except RecursionError:
        return os.path.abspath(path)  # noqa: PTH100 - text in, text out


def pointed_at(path: str) -> Iterator[str]:
    """Yield the git folders that a ``.git`` leads to, as real paths."""
    folder = real_path(path)
    if stat.S_ISREG(_mode(folder)):
        text = _text(folder)
        target = _path_in(text.removeprefix("gitdir: ")) if text.startswith("gitdir: ") else ""
        if not target:
            return
        folder = real_path(
            f"{os.path.dirname(folder)}/{target}" if target[0] != "/" else target  # noqa: PTH120
        )
        yield folder
    common = _path_in(_text(f"{folder}/commondir"))
    if common:
        yield real_path(common if common[0] == "/" else f"{folder}/{common}")


def _path_in(text: str) -> str:
    """Return the path that one of git's files contains.

    Like git, this removes trailing newlines, but no blanks.
    """
    return text.rstrip("\r\n").partition("\0")[0]


def named_by_configuration(worktree: str) -> list[str]:
    """Return the places that the configuration of a repository or of its user names.

    The places need not exist. Every word in a setting that names a program counts as the name of a
    file, because even ``sh conv.sh`` runs a file.

    Args:
        worktree: The folder with the ``.git``, as a real path.
    """
    pointer = f"{worktree}/.git"
    folders = [real_path(pointer), *pointed_at(pointer)]
    if not any(os.path.lexists(f"{folder}/HEAD") for folder in folders):
        return []
    named: dict[str, None] = {}
    for variable in _VARIABLES:
        named |= dict.fromkeys(_files_in(os.environ.get(variable, ""), worktree))
    home = real_path(Path.home())
    user = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    pending = [f"{folder}/{name}" for folder in folders for name in ("config", "config.worktree")]
    pending += [os.environ.get("GIT_CONFIG_GLOBAL", ""), os.environ.get("GIT_CONFIG_SYSTEM", "")]
    pending += [f"{user}/git/config", f"{home}/.gitconfig", "/etc/gitconfig"]
    seen: set[str] = {""}
    while pending and len(seen) <= _MAX_FILES:
        file = pending.pop()
        if file in seen:
            continue
        seen.add(file)
        for key, value in _naming_settings(_text(file)):
            if key.startswith("include"):
                path = _joined(os.path.dirname(file), value)  # noqa: PTH120 - text in, text out
                named[path] = None
                pending.append(path)
            elif key not in _WHOLE:
                named |= dict.fromkeys(_files_in(value, worktree))
            else:
                path = _joined(worktree, value)
                # The folder may be or contain the work tree. In that case it can't be protected as
                # a whole, so the names of hooks are listed in addition.
                named |= dict.fromkeys((path, *(f"{path}/{name}" for name in _HOOKS)))
    return [path for path in named if not is_below(worktree, path)]


def _joined(base: str, value: str) -> str:
    # git reads a value up to the first NUL.
    value = value.partition("\0")[0]
    return real_path(os.path.join(base, os.path.expanduser(value)))  # noqa: PTH111, PTH118 - text


def _files_in(value: str, worktree: str) -> Iterator[str]:
    """Yield the files that the words of a command may name."""
    for word in _words(value):
        # A name such as $PWD/conv.sh begins with a slash after its variable is removed.
        for name in {word, word.lstrip("/")} - {"", ".", ".."}:
            path = f"{worktree}/{name}" if "/" not in name else _joined(worktree, name)
            mode = _mode(path)
            if stat.S_ISDIR(mode):
                yield from (f"{real_path(path)}/{file}" for file in _RUN_OF_FOLDER)
            else:
                # A file that doesn't exist may be created later.
                yield real_path(path) if mode else path


@functools.lru_cache(maxsize=256)
def _words(value: str) -> tuple[str, ...]:
    plain = re.sub(r"\$\{?\w+\}?", " ", value.lstrip("!"))
    words = [
        value.strip(),
        *re.split(r"[\s'\"`;|&<>(){}=,$]+", plain),
        *re.split(r"[\n'\";|&<>(){}=,$]+", plain),
    ]
    is_name = re.compile(r"[^-%\0][^\0]{,4000}")
    return tuple(dict.fromkeys(word.strip() for word in words if is_name.fullmatch(word.strip())))


# ── reading ───────────────────────────────────────────────────────────────────────────────────────

_QUOTED: Final = r'"(?:[^"\\\n]|\\[^\n]|\\\n)*"?'
_TOKEN: Final = re.compile(
    # Possessive quantifiers never backtrack, so even a line of a million blanks takes linear time.
    r'\[[ \t]*+(?P<section>[-.\w]*+)(?:[ \t]++"(?P<name>(?:[^"\\\n]|\\[^\n])*+)")?+[ \t]*+\]'
    rf"|(?P<key>[A-Za-z][-A-Za-z0-9]*)[ \t]*"
    rf"(?:=[ \t]*(?P<value>(?:[^\\\"\n#;]|\\[^\n]|\\\n|{_QUOTED})*))?"
    r"|[#;][^\n]*|\s+|."
)
_PART: Final = re.compile(
    r"\\(?P<escaped>.)|(?P<quote>\")|(?P<blanks>\s+)|(?P<text>[^\\\"\s]+)", re.DOTALL
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", "\n": ""}


@functools.lru_cache(maxsize=256)
def settings(text: str) -> tuple[tuple[str, str | None], ...]:
    """Return the settings in the text of a git configuration, in order.

    The value of a setting without one is None. Text that git refuses to read is ignored.
    """
    section, listed = "", list[tuple[str, str | None]]()
    for token in _TOKEN.finditer(text.replace("\r\n", "\n").removeprefix("\ufeff")):
        if token["section"] is not None:
            name = token["name"]
            section = token["section"].lower()
            section += "" if name is None else "." + re.sub(r"\\(.)", r"\1", name)
        elif token["key"] is not None:
            value = token["value"]
            listed.append(
                (f"{section}.{token['key'].lower()}", None if value is None else _value(value))
            )
    return tuple(listed)


def _value(raw: str) -> str:
    """Return a value without its quotes and trailing blanks."""
    text, end, is_quoted = "", 0, False
    for part in _PART.finditer(raw):
        if part["quote"]:
            is_quoted = not is_quoted
        elif part["escaped"]:
            text += _ESCAPES.get(part["escaped"], part["escaped"])
        else:
            text += part[0]
        if is_quoted or not part["blanks"]:
            end = len(text)
    return text[:end]


@functools.lru_cache(maxsize=256)
def _naming_settings(text: str) -> tuple[tuple[str, str], ...]:
    """Return the settings that name a program or another configuration file."""
    listed = []
    for key, value in settings(text):
        folded = key.lower()
        name = folded.rpartition(".")[2]
        is_url = name in ("url", "pushurl")
        is_alias = folded.startswith("alias.")
        if (
            not value
            or (is_url and not _URL.match(value))
            or (is_alias and not value.startswith("!"))
        ):
            continue
        if folded in _WHOLE or _PROGRAM.fullmatch(folded):
            listed.append((folded, value))
    return tuple(listed)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - text in
    except (OSError, ValueError):
        return 0


def _text(file: str) -> str:
    """Return the beginning of a regular file, or an empty text for anything else.

    A command may have replaced the file with a pipe.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return ""
    try:
        is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return (
            os.read(descriptor, _MAX_FILE).decode("utf-8", "surrogateescape") if is_regular else ""
        )
    finally:
        os.close(descriptor)
