"""What a shell command says for certain: the words of one simple command, or a reason for doubt.

Not a parser of the shell's language but of the small part of it that cannot surprise: words of harmless characters, and
quoted text in which nothing is expanded. Everything else (lists, pipes, redirections, substitutions, variables, globs,
braces, escapes, comments, assignments, keywords, line breaks) is doubt. Doubt is for people: no rule allows it.
"""

from __future__ import annotations

import re

import attrs

_LONGEST = 10_000
# Neither "~" nor a glob, and nothing that ends a word, begins an expansion, or is read differently by some shell.
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
    """A command as far as it can be understood.

    Attributes:
        words: The program and its arguments; empty if there is doubt.
        doubt: Why it is not certain what will run; None if it is.
        pieces: Everything in it that looks like a word, whatever surrounds it: for rules that forbid.
    """

    words: tuple[str, ...]
    doubt: str | None
    pieces: tuple[str, ...]


def parse_command(text: str) -> Command:
    """Read a command; never raises."""
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
    """The words, or why there may be more to it."""
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
