"""Clauses that ask to look: summarise, find, list, read. Used by `_understanding`; counting is `_sought`'s."""

from __future__ import annotations

import re

from ._clauses import ATOM, Clauses
from ._intents import CountLines, Files, FindFile, Intent, ListFiles, ReadFiles, Summarise
from ._leftovers import FINDING, LOOKING, SUMMARISING, judged, refused, taken
from ._sought import QUESTION_TAIL, containing, search_for, sought
from ._subjects import is_here, paths_in, subject_in

_SUMMARISES = re.compile(
    r"(?:summari[sz]e|sum\s+up|describe|explain|give\s+(?:me\s+)?(?:a|an)\s+(?:\w+\s+)?(?:summary|overview)|"
    r"what\s+is\s+(?:in\s+)?(?:this|the)\s+(?:repository|repo|project|directory|folder)\b|"
    r"tell\s+(?:me\s+)?about)\b",
    re.IGNORECASE,
)
_FINDS = re.compile(
    r"(?:find|search|grep|look(?!\s+(?:at|into)\b)|locate|where|which\s+files?)\b\s*(?:me\s+)?(?:out\s+)?(?P<rest>.+)",
    re.IGNORECASE,
)
_BEFORE_A_TEXT = re.compile(
    r"(?:(?:for|where|which\s+files?|all|the|every|any|places?|lines?|occurrences?|mentions?|uses?|of|is|are|does|do|"
    r"that|with|contains?|containing|mentions?|texts?|words?|phrases?|up)\s+)+",
    re.IGNORECASE,
)
_A_FILE = re.compile(
    rf"(?:a\s+)?files?\s+(?:(?:named|called)\s+(?P<name>{ATOM}|\S+)|(?P<like>{ATOM}|[\w+@*-]*[.*][\w.*+@-]*))",
    re.IGNORECASE,
)
_SOME_FILES = re.compile(r"(?:(?:[\w.+]+\s+){1,2})?files?", re.IGNORECASE)
_FILES = re.compile(r"(?:[\w.+-]+\s+){0,3}files?\b", re.IGNORECASE)
_JUST_FILES = re.compile(r"files?\b", re.IGNORECASE)
_ONE_NAME = re.compile(r"[\w+@-]+(?:\.[\w+@-]+)*\.[A-Za-z]\w{0,9}")
_LISTS = re.compile(r"(?P<verb>list|ls|show|display|print|give|what|which|view|tell)\b\s*(?P<rest>.*)", re.IGNORECASE)
_ABOUT_FILES = re.compile(r"\b(?:files?|folders?|directory|directories|contents|entries|there|here)\b", re.IGNORECASE)
_READS = re.compile(r"(?:read|show|display|print|open|cat|view|what|give|tell|look\s+(?:at|into))\b", re.IGNORECASE)
_BARE_NAME = re.compile(
    r"(?:read|open|cat|view|list|ls|look\s+(?:at|into))\s+(?:the\s+)?(?:(?:file|directory|folder)\s+)?"
    r"(?P<name>[\w@+.-]*\w)[\s?!.]*",
    re.IGNORECASE,
)
_NO_NAME = re.compile(
    r"it|its|them|this|that|these|those|everything|all|something|files?|more|aloud|the|a|an", re.IGNORECASE
)
_RANGE = re.compile(
    r"\b(?P<end>first|last)\s+(?:(?P<most>\d{1,6})\s+lines|line)\b"
    r"|\blines?\s+(?P<from>\d{1,7})(?:\s*(?:-|to|until|through)\s*(?P<to>\d{1,7}))?",
    re.IGNORECASE,
)


def summarise(clause: str, clauses: Clauses, before: Files | None) -> list[Intent] | None:
    """What is it, in numbers?"""
    if _SUMMARISES.match(clause) is None:
        return None
    files, rest = subject_in(clause, clauses, before)
    is_about_files = files != Files() or is_here(clause) or re.search(r"\bfiles?\b", clause, re.IGNORECASE)
    return judged(Summarise(files=files), clause, rest, clauses, SUMMARISING) if is_about_files else None


def find(clause: str, clauses: Clauses, before: Files | None) -> list[Intent] | None:
    """Where is a text, or a file?"""
    found = _FINDS.match(clause)
    if found is None:
        return None
    lead = _BEFORE_A_TEXT.match(clause, found.start("rest"))
    start = lead.end() if lead else found.start("rest")
    if named := _A_FILE.match(clause, start):
        name = named["name"] or named["like"]
        return _find_file(name.rstrip("?!,"), clause, named.end(), clauses)
    if re.fullmatch(r"[\w*?.-]*\*[\w*?.-]*", clause[start:]):
        return _find_file(clause[start:], clause, len(clause), clauses)
    is_every = lead is not None and re.search(r"\b(?:all|every|any)\b", lead[0], re.IGNORECASE)
    if (lead and _SOME_FILES.fullmatch(clause, start)) or (_FILES if is_every else _JUST_FILES).match(clause, start):
        if asked := containing(clause, clauses, only_count=False):
            return asked
        files, rest = subject_in(clause, clauses)
        listing = CountLines(files=files) if files.pick else ListFiles(files=files, is_deep=True)
        return judged(listing, clause, rest, clauses, frozenset({"find", "search", "look", "locate"}))
    text = sought(clause[start:])
    if _ONE_NAME.fullmatch(text) and not QUESTION_TAIL.search(clause, start):
        return _find_file(text, clause, clause.find(text, start) + len(text), clauses)
    return search_for(text, clause, start, clauses, only_count=False) if text else None


def _find_file(name: str, clause: str, end: int, clauses: Clauses) -> list[Intent]:
    files, rest = subject_in(taken(clause, (0, end)), clauses)
    intent = FindFile(name=clauses.spelled(name), directory=files.directory)
    if files.paths:
        return refused(clause, clause[end:], clauses)
    return judged(intent, clause, rest, clauses, FINDING)


def list_(clause: str, clauses: Clauses, before: Files | None) -> list[Intent] | None:
    """Which files are there?"""
    found = _LISTS.match(clause)
    if found is None:
        return None
    if asked := containing(clause, clauses, only_count=False):
        return asked
    files, rest = subject_in(clause, clauses, before)
    is_deep = bool(re.search(r"\ball\b|\brecursive|\bevery\b|\btree\b|\bdeep", clause, re.IGNORECASE))
    about_files = _ABOUT_FILES.search(clause)
    is_list = found["verb"].lower() in ("list", "ls")
    if is_list:
        name = _bare_name(clause) if files == Files() else ""
        if len(files.paths) == 1 and files.directory == ".":
            files = Files(directory=files.paths[0].rstrip("/") or "/")
        elif name and name.lower() not in LOOKING:
            files, rest = Files(directory=name), ""
    elif not about_files or files.paths:
        return None
    if files.pick:  # "the longest file": which one it is is a count's answer, what it says a reading's
        return judged(CountLines(files=files), clause, rest, clauses, LOOKING) if is_list else None
    if files.paths:
        return refused(clause, " and ".join(files.paths), clauses)
    # A deep listing names files only; a flat one shows directories as well.
    known = LOOKING - {"directories", "folders"} if is_deep or files.kind else LOOKING
    return judged(ListFiles(files=files, is_deep=is_deep), clause, rest, clauses, known)


def read(clause: str, clauses: Clauses, before: Files | None) -> list[Intent] | None:
    """What does a file say?"""
    if _READS.match(clause) is None:
        return None
    files, rest = subject_in(clause, clauses, before)
    named = files.paths or (() if files.kind else paths_in(clause, clauses))
    if not named and not files.pick and files is not before:
        named, rest = ((name,), "") if (name := _bare_name(clause)) else ((), rest)
        if not named:
            return None
    first, most, is_end = 1, None, False
    if wanted := _RANGE.search(clause):
        rest = taken(rest, wanted.span())
        first, most, is_end = _range(wanted)
    intent = ReadFiles(files=Files(paths=named) if named else files, first=first, most=most, is_end=is_end)
    return judged(intent, clause, rest, clauses, LOOKING)


def _bare_name(clause: str) -> str:
    """A name without an ending, which only the verb before it tells from other words."""
    found = _BARE_NAME.fullmatch(clause)
    return found["name"] if found and not _NO_NAME.fullmatch(found["name"]) else ""


def _range(wanted: re.Match[str]) -> tuple[int, int | None, bool]:
    if wanted["end"]:
        return 1, max(1, int(wanted["most"] or 1)), wanted["end"].lower() == "last"
    first = max(1, int(wanted["from"]))
    return first, max(1, int(wanted["to"] or wanted["from"]) - first + 1), False
