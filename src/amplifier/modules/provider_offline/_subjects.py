"""What a clause is about: paths, kinds of files, directories, and "the longest one"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ._clauses import ATOM, Clauses
from ._intents import Files

KINDS: Mapping[str, tuple[str, str]] = {
    "python": ("Python", "*.py"),
    "markdown": ("Markdown", "*.md"),
    "text": ("text", "*.txt"),
    "json": ("JSON", "*.json"),
    "yaml": ("YAML", "*.{yaml,yml}"),
    "toml": ("TOML", "*.toml"),
    "javascript": ("JavaScript", "*.{js,mjs,cjs,jsx}"),
    "typescript": ("TypeScript", "*.{ts,tsx}"),
    "rust": ("Rust", "*.rs"),
    "golang": ("Go", "*.go"),
    "java": ("Java", "*.java"),
    "c++": ("C++", "*.{cc,cpp,cxx,hpp}"),
    "html": ("HTML", "*.{html,htm}"),
    "css": ("CSS", "*.css"),
    "shell": ("shell", "*.{sh,bash}"),
    "csv": ("CSV", "*.csv"),
    "test": ("test", "test_*.py"),
    "documentation": ("documentation", "*.{md,rst}"),
}
"""Words for kinds of files: how they are shown, and their pattern."""

_KIND = re.compile(
    rf"(?<![\w/.])({'|'.join(re.escape(word) for word in KINDS)})(?:\s+source)?s?\s+(?:files?|code|ones?|scripts?|documents?)\b",
    re.IGNORECASE,
)
_WILDCARD = re.compile(r"(?<![\w/])((?:[\w.-]+/)*(?:\*\*/)?[\w.-]*\*[\w.*{},-]*)")
_EXTENSION = re.compile(r"(?<![\w*/.])\.([A-Za-z]\w{0,7})\s+(?:files?|ones?)\b")

_WELL_KNOWN = "README|LICENSE|LICENCE|CHANGELOG|CONTRIBUTING|Makefile|Dockerfile|NOTICE|AUTHORS|TODO"
_PATH = re.compile(
    rf"(?P<atom>{ATOM})"
    r"|(?<![\w.*/-])(?P<path>~?(?:\.{0,2}/)?(?:[\w.+@-]+/)+[\w.+@-]*[\w+@-]|[\w.+@-]+/(?!\S))"
    r"|(?<![\w.*/-])(?P<name>\.?[\w+@-]+(?:\.[\w+@-]+)*\.[A-Za-z]\w{0,9})(?![\w*/-])"
    rf"|\b(?P<known>{_WELL_KNOWN})\b",
)
_WITHIN = re.compile(
    rf"\b(?:in|under|inside|below|within|of|from|at)\s+(?:the\s+|my\s+)?(?:(?:folder|directory|package)\s+)?"
    rf"(?P<directory>{ATOM}|~?(?:\.{{0,2}}/)?(?:[\w.+@-]+/)*[\w.+@-]*[\w+@-]/?|\.{{1,2}})(?=\s|$|[,?!])"
    r"(?P<word>\s+(?:folder|directory|package)\b)?",
    re.IGNORECASE,
)
_HERE = re.compile(
    r"\b(?:this|the|my|current|working)\s+(?:current\s+|working\s+|whole\s+)?"
    r"(?:directory|folder|repository|repo|project|workspace|tree|codebase|code\s+base)\b|\bhere\b|\beverything\b",
    re.IGNORECASE,
)
_NO_DIRECTORY = frozenset(
    [
        "this",
        "that",
        "the",
        "it",
        "its",
        "them",
        "there",
        "here",
        "each",
        "all",
        "total",
        "order",
        "current",
        "working",
        "my",
        "whole",
        "files",
        "file",
        "lines",
        "words",
    ]
)
_PICK = re.compile(r"\b(longest|largest|biggest|shortest|smallest)\b", re.IGNORECASE)
_PRONOUN = re.compile(
    r"\b(?:it|its|them|their|that\s+file|this\s+file|the\s+file|each(?:\s+of\s+them)?)\b", re.IGNORECASE
)


def is_here(clause: str) -> bool:
    """Whether the whole workspace is meant."""
    return _HERE.search(clause) is not None


def paths_in(clause: str, clauses: Clauses) -> tuple[str, ...]:
    """Files and directories that are named, in order and each once."""
    found = [clauses.spelled(match[0]).strip() for match in _PATH.finditer(clause)]
    return tuple(dict.fromkeys(path for path in found if path and "\n" not in path and len(path) <= 400))


def directory_in(clause: str, clauses: Clauses) -> str | None:
    """The directory something is said to be in."""
    for match in _WITHIN.finditer(clause):
        path = clauses.spelled(match["directory"]).strip()
        if path.lower() in _NO_DIRECTORY or (
            _PATH.fullmatch(path) and path[-1] != "/" and "." in path.rpartition("/")[2]
        ):
            continue  # "of README.md" names a file
        is_last = match.end() >= len(clause.rstrip(" ?!."))
        if match["word"] or "/" in path or path in (".", "..") or match["directory"] != path or is_last:
            return path.rstrip("/") or "/"
    return None


def files_in(clause: str, clauses: Clauses, before: Files | None = None) -> Files:
    """Which files are meant.

    Args:
        clause: The words.
        clauses: What the signs in it stand for.
        before: What the clause before this one was about; "it" and "the longest one" may mean that.
    """
    chosen = _PICK.search(clause)
    pick = (
        "" if chosen is None else ("longest" if chosen[1].lower() in ("longest", "largest", "biggest") else "shortest")
    )
    kind, pattern = _kind_in(clause)
    directory = directory_in(clause, clauses)
    paths = () if kind else tuple(path for path in paths_in(clause, clauses) if path.rstrip("/") != directory)
    if before is not None and not kind and not paths and directory is None and not is_here(clause):
        if pick:
            return Files(kind=before.kind, pattern=before.pattern, directory=before.directory, pick=pick)
        if _PRONOUN.search(clause):
            return before
    return Files(paths=paths, kind=kind, pattern=pattern, directory=directory or ".", pick=pick)


def _kind_in(clause: str) -> tuple[str, str]:
    if found := _KIND.search(clause):
        return KINDS[found[1].lower()]
    if found := _EXTENSION.search(clause):
        return f".{found[1]}", f"*.{found[1]}"
    if found := _WILDCARD.search(clause):
        return found[1], found[1]
    return "", "*"
