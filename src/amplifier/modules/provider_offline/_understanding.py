"""From clauses to intents: rules tried in order, the first that fits wins."""

from __future__ import annotations

import re
from collections.abc import Callable

from ._clauses import ATOM, Clauses, split_clauses
from ._intents import (
    FetchPage,
    Files,
    Help,
    Intent,
    ReplaceText,
    RunCommand,
    Todo,
    Unknown,
    WriteFile,
)
from ._looking_rules import find, list_, read, summarise
from ._sought import count
from ._subjects import is_here, paths_in

_Rule = Callable[[str, Clauses, Files | None], Intent | list[Intent] | None]

_URL = re.compile(r"https?://[^\s\ue000\ue001]+", re.IGNORECASE)
_REPORT = re.compile(
    r"^(?:(?:a|an|the|my|your|this|that|all|short|brief|small|full|long|of|it|them)\s+)*"
    r"(?:reports?|summar(?:y|ies)|answers?|results?|findings|overview|it|this|that|them|everything|all)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\b(?:named|called|file\s+name|filename)\b", re.IGNORECASE)
_HELP = re.compile(
    r"^(?:help|hello|hi|hey|good\s+(?:morning|day|evening)|what\s+(?:can|do)\s+you\b.*|who\s+are\s+you\b.*|"
    r"what\s+are\s+you\b.*|how\s+(?:do|can)\s+(?:i|you)\b.*)$",
    re.IGNORECASE,
)


def understand(prompt: str) -> tuple[list[Intent], int]:
    """What a prompt asks for, in order, and how many clauses were too many to look at."""
    clauses = split_clauses(prompt)
    intents: list[Intent] = []
    before: Files | None = None
    for clause in clauses.clauses:
        if re.fullmatch(r"\d+[.)]?|thanks?(?:\s+you)?|please", clause, re.IGNORECASE):
            continue
        understood = _understood(clause, clauses, before)
        intents += understood
        intent = understood[0]
        before = getattr(intent, "files", before)
        if isinstance(intent, WriteFile | ReplaceText) and intent.path:
            before = Files(paths=(intent.path,))
    return intents, clauses.left_out


def _understood(clause: str, clauses: Clauses, before: Files | None) -> list[Intent]:
    for rule in _RULES:
        intents = rule(clause, clauses, before)
        if intents is not None:
            return intents if isinstance(intents, list) else [intents]
    return [Unknown(words=clauses.spelled(clause))]


# ── what changes something ───────────────────────────────────────────────────────────────────────


def _run(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = re.match(
        r"(?:run|execute)\b\s*(?:(?:the\s+)?(?:shell\s+)?command\b)?\s*:?\s*(?P<command>.*)",
        clause,
        re.IGNORECASE | re.DOTALL,
    )
    if found is None:
        found = re.match(r"\$\s+(?P<command>.+)", clause, re.DOTALL)
    if found is None:
        return None
    atom = re.search(ATOM, found["command"])
    command = clauses.spelled(atom[0] if atom and found["command"].startswith(atom[0]) else found["command"]).strip()
    is_prose = re.match(r"(?:the|all|my|its|your|some|a|an|this|that|these|those)\b", command, re.IGNORECASE)
    return RunCommand(command="" if is_prose else command)


def _replace(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = re.match(
        rf"(?:replace|change)\s+(?:the\s+(?:text|word|words)\s+)?(?P<old>{ATOM}|\S+)\s+(?:with|by|to|into)\s+"
        rf"(?P<new>{ATOM}|\S+)\s+in\s+(?P<where>.+)",
        clause,
        re.IGNORECASE,
    )
    if found is None:
        return None
    paths = paths_in(found["where"], clauses) or (before.paths if before is not None else ())
    old, new = clauses.spelled(found["old"]), clauses.spelled(found["new"])
    return ReplaceText(path=paths[0], old=old, new=new) if paths and old else None


def _write(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = re.match(r"(?:write|save|store|put|create|make)\b\s*(?P<rest>.*)", clause, re.IGNORECASE | re.DOTALL)
    if found is None:
        return None
    head, colon, tail = found["rest"].partition(": ")
    into = re.search(
        r"(?:^|\s)(?:to|into|in|as|at)\s+(?:(?:a|the)\s+)?(?:(?:new\s+)?file\s+)?(?:named\s+|called\s+)?", head
    )
    made = re.match(r"(?:a|the)\s+(?:new\s+)?file\s+(?:named\s+|called\s+)?(?P<rest>.+)", head, re.IGNORECASE)
    path, what = "", head
    if made is not None:
        named = paths_in(made["rest"], clauses)
        path = named[0] if named else made["rest"].split()[0]
        said = re.search(
            r"\b(?:with|containing|saying|that\s+says)\s+(?:the\s+)?(?:(?:text|contents?|words?)\s+)?(.+)", head
        )
        what = said[1] if said else ""
    elif into is not None:
        path, what = _destination(head, clauses)
    if colon:
        what = tail
    what = what.strip()
    is_report = not colon and (_REPORT.match(what) is not None or (not what and made is None))
    if made is not None and not what and not colon:
        return WriteFile(path=path, text="")
    if not path and not is_report:
        return None
    return WriteFile(path=path, text=None if is_report else _literal(what, clauses))


def _destination(head: str, clauses: Clauses) -> tuple[str, str]:
    """The last path behind a "to" or "into", and the words before it."""
    where = list(re.finditer(r"(?:^|\s)(?:to|into|in|as|at)\s+", head, re.IGNORECASE))
    for found in reversed(where):
        paths = paths_in(head[found.end() :], clauses)
        if paths:
            return paths[0], head[: found.start()]
    return "", head


def _literal(words: str, clauses: Clauses) -> str:
    words = re.sub(r"^(?:the\s+)?(?:text|words?|line|sentence)\s+", "", words, flags=re.IGNORECASE)
    text = clauses.spelled(words).strip("\n")
    return text if not text or text.endswith("\n") else text + "\n"


def _todo(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    added = re.match(
        r"add\s+(?P<text>.+?)\s+to\s+(?:the|my|your)\s+(?:todos?|to-dos?|todo\s+list|list)\b", clause, re.IGNORECASE
    )
    if added is not None:
        return Todo(text=clauses.spelled(added["text"]))
    if re.search(r"\b(?:todos|todo\s+list|to-do\s+list)\b", clause, re.IGNORECASE):
        return Todo()
    return None


def _fetch(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = _URL.search(clauses.spelled(clause))
    return FetchPage(url=found[0].rstrip(".,;)")) if found else None


def _help(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    return Help() if _HELP.match(clause) and not is_here(clause) else None


_RULES: tuple[_Rule, ...] = (
    _run,
    _replace,
    _todo,
    _fetch,
    _write,
    summarise,
    count,
    _help,
    find,
    list_,
    read,
)
