"""The text that a question looks for, and questions that count: how many files, lines, words, times."""

from __future__ import annotations

import re

from ._clauses import ATOM, Clauses
from ._intents import CountFiles, CountLines, Files, FindText, Intent
from ._leftovers import COUNTING, FINDING, OCCURRING, has_qualifier, judged, refused, taken
from ._subjects import subject_in

QUESTION_TAIL = re.compile(
    r"\s+(?:(?:is|are|was|were|has\s+been|gets?|being)\s+)?(?:mentioned|used|defined|called|described|declared|stated|"
    r"said|written|referenced|found|occurs?|appears?|stands?)\b.*$|\s+(?:is|are)\s+there\b.*$",
    re.IGNORECASE,
)
_WHERE_TAIL = re.compile(
    rf"\s+(?:in|under|inside|within|across|among|throughout)\s+(?:{ATOM}|the\b|this\b|all\b|my\b|every\b|each\b|any\b|"
    r"[\w.+@*-]*[./*][\w.+@*/-]*|\w+\s+(?:files?|folder|directory)\b).*$",
    re.IGNORECASE,
)
_IN_A_WORD = re.compile(r"\s+(?:in|under|inside|within|across)\s+\S+$", re.IGNORECASE)
_COUNTS = re.compile(
    r"(?:count|how\s+(?:many|often|long|big|large|much)|what\s+is\s+the\s+number|tell\s+me\s+how|which\s+(?:one|file))\b",
    re.IGNORECASE,
)
_OCCURRENCES = re.compile(
    rf"(?:(?:how\s+often|how\s+many\s+times)\s+(?:does|do|is|are)\s+|(?:occurrences|mentions|uses|appearances)\s+of\s+|"
    rf"count\s+(?=(?:{ATOM})))(?:the\s+(?:word|text|words)\s+)?(?P<text>.+)",
    re.IGNORECASE,
)
_CONTAINING = re.compile(
    r"\b(?:files?|lines?)\b.*?(?P<verb>\b(?:contains?|containing|mentions?|mentioning)\s+(?:the\s+(?:word|text|words)\s+)?)"
    rf"(?P<text>{ATOM}|[^\s,?!]+)",
    re.IGNORECASE,
)
_NO_TEXT = re.compile(
    r"(?:nothing|anything|something|no|any|some|the|a|an|at|both|either|neither)|.*\d+", re.IGNORECASE
)
_UNIT = re.compile(r"\b(line|word|character)s?\b", re.IGNORECASE)
_FILES = re.compile(r"\bfiles?\b", re.IGNORECASE)
_DIRECTORIES = re.compile(r"\b(?:sub-?)?(?:directory|directories|folders?)\b", re.IGNORECASE)


def sought(words: str) -> str:
    """The text that is looked for: quoted, or what is left without the words around it."""
    quoted = re.search(ATOM, words)
    if quoted is not None:
        return quoted[0]
    text = QUESTION_TAIL.sub("", f" {words}")
    text = _WHERE_TAIL.sub("", text)
    text = re.sub(r"^\s*(?:the|a|an)\s+(?:word|text|term|string|phrase)\s+", "", text, flags=re.IGNORECASE)
    return text.strip(" ?.!,:")[:200]


def search_for(
    text: str, clause: str, start: int, clauses: Clauses, *, only_count: bool, strictly: bool = False
) -> list[Intent]:
    """A search for a text that stands in a clause from `start` on; what is around it says where.

    A text without quotes that says "except" or "not" is taken for a condition, which no search here honours.
    """
    at = max(clause.find(text, start), start)
    around = taken(clause, (at, at + len(text)))
    files, rest = subject_in(around, clauses)
    if len(files.paths) > 1:
        return refused(clause, " and ".join(files.paths), clauses)
    if files.pick:
        return refused(clause, f"the {files.pick}", clauses)
    if re.fullmatch(ATOM, text) is None and " " in text and has_qualifier(text):
        return refused(clause, text, clauses)
    intent = FindText(text=clauses.spelled(text), files=files, only_count=only_count)
    return judged(intent, clause, rest, clauses, OCCURRING if only_count else FINDING, strictly=strictly)


def containing(clause: str, clauses: Clauses, *, only_count: bool) -> list[Intent] | None:
    """Files or lines that contain a text; of a text without quotes, one word."""
    found = _CONTAINING.search(clause)
    if found is None:
        return None
    if _NO_TEXT.fullmatch(found["text"]):
        return refused(clause, clause[found.start("verb") :], clauses)
    return search_for(found["text"], clause, found.start("text"), clauses, only_count=only_count, strictly=True)


def count(clause: str, clauses: Clauses, before: Files | None) -> list[Intent] | None:
    """A question for a number; every word of it counts."""
    head = _COUNTS.match(clause)
    if head is None:
        return None
    if found := _OCCURRENCES.search(clause):
        text = _IN_A_WORD.sub("", sought(found["text"]))
        return search_for(text, clause, found.start("text"), clauses, only_count=True, strictly=True) if text else None
    is_which = clause[:5].lower() == "which"
    if not is_which and (asked := containing(clause, clauses, only_count=True)):
        return asked
    files, rest = subject_in(clause, clauses, before)
    if is_which and not files.pick:
        return None
    if not re.search(r"big|large|much", head[0], re.IGNORECASE):
        rest = taken(rest, head.span())
    intent, rest = _number(files, rest)
    if intent is None:
        return None
    if files.paths and isinstance(intent, CountFiles | CountLines) and re.search(r"\bfiles\b", rest, re.IGNORECASE):
        return refused(clause, " and ".join(files.paths), clauses)  # a number of files, or of what is in one?
    if files.paths and files.directory != ".":
        return refused(clause, f"in {files.directory}", clauses)
    return judged(intent, clause, rest, clauses, COUNTING, strictly=True)


def _number(files: Files, rest: str) -> tuple[Intent | None, str]:
    """What is to be counted, and the rest without the word for it."""
    if unit := _UNIT.search(rest):
        same = re.compile(rf"\b{unit[1]}s?\b", re.IGNORECASE)
        rest = taken(rest, *(found.span() for found in same.finditer(rest)))
        return CountLines(files=files, unit=f"{unit[1].lower()}s"), rest
    if files.paths or files.pick:
        return CountLines(files=files), rest
    if files.kind or _FILES.search(rest):
        return CountFiles(files=files), rest
    if found := _DIRECTORIES.search(rest):
        return CountFiles(files=files, are_directories=True), taken(rest, found.span())
    return None, rest
