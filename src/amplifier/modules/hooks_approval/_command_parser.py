"""Parses a shell command into the words of one simple command, or states why it is ambiguous.

Parses only the small unambiguous part of the shell's language: words of plain characters, and quoted text without
expansions. Everything else (lists, pipes, redirections, substitutions, variables, globs, braces, escapes, comments,
assignments, keywords, line breaks) is ambiguous. No rule allows an ambiguous command: the user decides.
"""

from __future__ import annotations

import re

import attrs

_LONGEST = 10_000
# Neither "~" nor globs, and no character that ends a word, begins an expansion, or differs between shells.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_BLANK = re.compile(r"[ \t]+")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"([^"$`\\!]*)"')
_KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "in"}
    | {"select", "function", "time", "coproc"}
)
_NAMES = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL character", "'": "a quote", '"': "a quote"}

_QUOTING = str.maketrans("", "", "'\"\\")
_PIECE = re.compile(r"[^\s;&|<>()$`{}!#=*?\[\]~]+")


@attrs.frozen
class Command:
    """A parsed command.

    Attributes:
        words: The program and its arguments; empty for an ambiguous command.
        doubt: Why the command is ambiguous; None if it is not.
        pieces: Everything that looks like a word, in any position: for rules that ask or deny.
    """

    words: tuple[str, ...]
    doubt: str | None
    pieces: tuple[str, ...]


def parse_command(text: str) -> Command:
    """Parse a command; never raises."""
    pieces = tuple(_PIECE.findall(text[:_LONGEST].translate(_QUOTING)))
    words, doubt = _simple_words(text)
    if doubt is None:
        doubt = _doubt_about(words)
    return Command((), doubt, pieces) if doubt else Command(words, None, pieces)


def _doubt_about(words: tuple[str, ...]) -> str | None:
    if not words or not words[0]:
        return "there is no program in it"
    if "=" in words[0]:
        return "it begins with an assignment"
    return f"{words[0]!r} is a keyword of the shell" if words[0] in _KEYWORDS else None


def _simple_words(text: str) -> tuple[tuple[str, ...], str | None]:
    """The words, or why the command may be more than a simple command."""
    if len(text) > _LONGEST:
        return (), f"it is longer than {_LONGEST} characters"
    words: list[str] = []
    parts: list[str] = []
    begun = False  # a word may be empty: ''
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            if begun:
                words.append("".join(parts))
            parts, begun, at = [], False, blank.end()
            continue
        if plain := _PLAIN.match(text, at):
            parts.append(plain[0])
            at = plain.end()
        elif (quoted := _SINGLE.match(text, at) or _DOUBLE.match(text, at)) and quoted[1].isprintable():
            parts.append(quoted[1])
            at = quoted.end()
        else:
            return (), f"{_NAMES.get(text[at]) or ascii(text[at])} may make it more than one simple command"
        begun = True
    if begun:
        words.append("".join(parts))
    return tuple(words), None
