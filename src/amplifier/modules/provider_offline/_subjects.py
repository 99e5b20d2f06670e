"""What a clause is about: paths, kinds of files, directories, and "the longest one"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ._clauses import ATOM, Clauses
from ._intents import Files
from ._leftovers import taken

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
    rf"(?<![\w/.])({'|'.join(re.escape(word) for word in KINDS)})(?:\s+source)?s?\s+"
    r"(?:files?|code|ones?|scripts?|documents?)\b",
    re.IGNORECASE,
)
_WILDCARD = re.compile(r"(?<![\w/])((?:[\w.-]+/)*(?:\*\*/)?[\w.-]*\*[\w.*{},-]*)")
_EXTENSION = re.compile(r"(?<![\w*/.])\.([A-Za-z]\w{0,7})\s+(?:files?|ones?)\b")

WELL_KNOWN = "README|LICENSE|LICENCE|CHANGELOG|CONTRIBUTING|Makefile|Dockerfile|NOTICE|AUTHORS|TODO"
_PATH = re.compile(
    rf"(?P<atom>{ATOM})"
    r"|(?<![\w.*/-])(?P<path>~?(?:\.{0,2}/)?(?:[\w.+@-]+/)+[\w.+@-]*[\w+@-]|[\w.+@-]+/(?!\S))"
    r"|(?<![\w.*/-])(?P<name>\.?[\w+@-]+(?:\.[\w+@-]+)*\.[A-Za-z]\w{0,9})(?![\w*/-])"
    r"|(?<![\w.*/-])(?P<hidden>\.[A-Za-z][\w-]*)(?![\w*/-]|\.\w|\s+(?:files?|ones?)\b)"
    rf"|\b(?P<known>{WELL_KNOWN})\b",
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
_PICK = re.compile(r"\b(longest|largest|biggest|shortest|smallest)\b(?:\s+ones?\b)?", re.IGNORECASE)
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
    found = _directory_match(clause, clauses)
    return None if found is None else clauses.spelled(found["directory"]).strip().rstrip("/") or "/"


def _directory_match(clause: str, clauses: Clauses) -> re.Match[str] | None:
    for match in _WITHIN.finditer(clause):
        path = clauses.spelled(match["directory"]).strip()
        if path.lower() in _NO_DIRECTORY or (
            _PATH.fullmatch(path) and path[-1] != "/" and "." in path.rpartition("/")[2][1:]
        ):
            continue  # "of README.md" names a file
        is_last = match.end() >= len(clause.rstrip(" ?!."))
        if match["word"] or "/" in path or path in (".", "..") or match["directory"] != path or is_last:
            return match
    return None


def files_in(clause: str, clauses: Clauses, before: Files | None = None) -> Files:
    """Which files are meant; see `subject_in`."""
    return subject_in(clause, clauses, before)[0]


def subject_in(clause: str, clauses: Clauses, before: Files | None = None) -> tuple[Files, str]:
    """Which files are meant, and the clause with `TAKEN` for the words that said so.

    Args:
        clause: The words.
        clauses: What the signs in it stand for.
        before: What the clause before this one was about; "it" and "the longest one" may mean that.
    """
    chosen = _PICK.search(clause)
    pick = (
        "" if chosen is None else ("longest" if chosen[1].lower() in ("longest", "largest", "biggest") else "shortest")
    )
    kind, pattern, spans = _kind_in(clause)
    within = _directory_match(clause, clauses)
    directory = None
    if within is not None:
        directory = clauses.spelled(within["directory"]).strip().rstrip("/") or "/"
        spans.append(within.span())
    spans += [found.span() for found in (chosen, *_HERE.finditer(clause)) if found is not None]
    paths: list[str] = []
    for found in () if kind else _PATH.finditer(clause):
        path = clauses.spelled(found[0]).strip()
        if path and "\n" not in path and len(path) <= 400 and path.rstrip("/") != directory:
            paths.append(path)
            spans.append(found.span())
    if before is not None and not kind and not paths and directory is None and not is_here(clause):
        rest = taken(clause, *spans, *(found.span() for found in _PRONOUN.finditer(clause)))
        if pick:
            return Files(kind=before.kind, pattern=before.pattern, directory=before.directory, pick=pick), rest
        if _PRONOUN.search(clause):
            return before, rest
    if directory is not None and paths and not any("/" in path or path[0] == "~" for path in paths):
        paths, directory = [f"{directory.rstrip('/')}/{path}" for path in paths], None
    files = Files(paths=tuple(dict.fromkeys(paths)), kind=kind, pattern=pattern, directory=directory or ".", pick=pick)
    return files, taken(clause, *spans)


def _kind_in(clause: str) -> tuple[str, str, list[tuple[int, int]]]:
    if found := _KIND.search(clause):
        return *KINDS[found[1].lower()], [found.span()]
    if found := _EXTENSION.search(clause):
        return f".{found[1]}", f"*.{found[1]}", [found.span()]
    if found := _WILDCARD.search(clause):
        return found[1], found[1], [found.span()]
    return "", "*", []
