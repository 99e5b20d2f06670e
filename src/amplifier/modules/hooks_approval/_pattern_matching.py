"""Matches commands, paths and hosts against the patterns of rules, in two ways.

*Certainly*: the pattern describes exactly what will happen; only such a match allows a call. *Possibly*: the value may involve
what the pattern names; for rules that ask or deny, which prefer false positives.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from ._command_parser import Command

ANY_MORE = "*"


def _all_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Programs that run other programs given by their arguments; the list cannot be complete.
_RUN_OTHERS = _all_of(
    "ash awk bash builtin busybox chroot command coproc csh dash doas docker env eval exec expect fish find flock gawk"
    " ionice ksh make nice node nohup npx parallel perl php podman python python3 ruby runuser script sed setsid sh ssh"
    " stdbuf strace su sudo systemd-run taskset tcsh time timeout unshare vi vim watch xargs zsh"
)


@lru_cache(maxsize=512)
def _pattern(word: str) -> re.Pattern[str]:
    # Brackets are not wildcards here: "[" is a program and part of many file names.
    return re.compile(fnmatch.translate(word.replace("[", "[[]")))


def word_matches(pattern: str, word: str) -> bool:
    """Whether a word matches a pattern with the wildcards ``*`` and ``?``."""
    return _pattern(pattern).match(word) is not None


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def command_certainly(pattern: Sequence[str], command: Command) -> bool:
    """Whether a simple command has exactly these words; a last ``*`` matches any further words, or none."""
    return command.doubt is None and _words_match(pattern, command.words)


def command_possibly(pattern: Sequence[str], command: Command) -> bool:
    """Whether the words occur anywhere in the command."""
    if command.doubt is None and _program(command.words[0]) not in _RUN_OTHERS:
        # The program is known; it may be named by its path.
        return any(_words_match(pattern, (name, *command.words[1:])) for name in _both(command.words[0]))
    words = pattern[:-1] if pattern[-1] == ANY_MORE and len(pattern) > 1 else pattern
    for at in range(len(command.pieces)):
        rest = command.pieces[at + 1 : at + len(words)]
        if any(_words_match(words, (name, *rest)) for name in _both(command.pieces[at])):
            return True
    return False


def _program(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _both(word: str) -> tuple[str, str]:
    return word, _program(word)


def _words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if pattern[-1] == ANY_MORE and len(pattern) > 1:
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(map(word_matches, pattern, words))


# ── paths ────────────────────────────────────────────────────────────────────────────────────────


def path_certainly(pattern: str, path: str) -> bool:
    """Whether a path matches name by name; ``**`` matches any number of names. A path with ``..`` never matches."""
    names = path.removeprefix("/").split("/")
    if not path.isprintable() or "\\" in path or not {"", ".", ".."}.isdisjoint(names):
        return False
    return path.startswith("/") == pattern.startswith("/") and _names_match(_names(pattern), names)


def path_possibly(pattern: str, path: str, base: str) -> bool:
    """As `path_certainly`, but after normalising case, Unicode and ``..``; a relative pattern matches at any depth."""
    wanted = [_folded(name) for name in _names(pattern)]
    if not pattern.startswith("/"):
        wanted = ["**", *wanted]
    full = posixpath.normpath(posixpath.join(base, path.replace("\\", "/")))
    return _names_match(wanted, [_folded(name) for name in _names(full)])


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _names_match(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Track all partial matches at the same time, so that many ``**`` do not make it slow."""
    reached = _skip_stars(pattern, {0})
    for name in names:
        after: set[int] = set()
        for at in reached:
            if at == len(pattern):
                continue
            if pattern[at] == "**":
                after.add(at)
            elif word_matches(pattern[at], name):
                after.add(at + 1)
        reached = _skip_stars(pattern, after)
    return len(pattern) in reached


def _skip_stars(pattern: Sequence[str], reached: set[int]) -> set[int]:
    for at in sorted(reached):
        end = at
        while end < len(pattern) and pattern[end] == "**":
            end += 1
            reached.add(end)
    return reached


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────


def host_certainly(pattern: str, url: str) -> bool:
    """Whether a URL is of that host; ``*.example.org`` matches every host below example.org."""
    if not url.isascii() or not url.isprintable() or {" ", "\\"} & set(url):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or not host:
        return False
    if pattern.startswith("*."):
        return host.endswith(pattern[1:].lower())
    return host == pattern.lower()


def host_possibly(pattern: str, url: str) -> bool:
    """Whether the host's name occurs anywhere in the URL."""
    return pattern.removeprefix("*.").casefold() in _folded(url)
