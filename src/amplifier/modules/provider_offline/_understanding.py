"""From clauses to intents: rules tried in order, the first that fits wins."""

from __future__ import annotations

import re
from collections.abc import Callable

from ._clauses import ATOM, Clauses, split_clauses
from ._intents import (
    CountFiles,
    CountLines,
    FetchPage,
    Files,
    FindFile,
    FindText,
    Help,
    Intent,
    ListFiles,
    ReadFiles,
    ReplaceText,
    RunCommand,
    Summarise,
    Todo,
    Unknown,
    WriteFile,
)
from ._subjects import directory_in, files_in, is_here, paths_in

_Rule = Callable[[str, Clauses, Files | None], Intent | None]

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
_QUESTION_TAIL = re.compile(
    r"\s+(?:(?:is|are|was|were|has\s+been|gets?|being)\s+)?(?:mentioned|used|defined|called|described|declared|stated|"
    r"said|written|referenced|found|occurs?|appears?|stands?)\b.*$",
    re.IGNORECASE,
)
_WHERE_TAIL = re.compile(
    rf"\s+(?:in|under|inside|within|across|among|throughout)\s+(?:{ATOM}|the\b|this\b|all\b|my\b|every\b|each\b|any\b|"
    r"[\w.+@*-]*[./*][\w.+@*/-]*|\w+\s+(?:files?|folder|directory)\b).*$",
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
        intent = _intent(clause, clauses, before)
        intents.append(intent)
        before = getattr(intent, "files", before)
        if isinstance(intent, WriteFile | ReplaceText) and intent.path:
            before = Files(paths=(intent.path,))
    return intents, clauses.left_out


def _intent(clause: str, clauses: Clauses, before: Files | None) -> Intent:
    for rule in _RULES:
        intent = rule(clause, clauses, before)
        if intent is not None:
            return intent
    return Unknown(words=clauses.spelled(clause))


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


# ── what only looks ──────────────────────────────────────────────────────────────────────────────


def _summarise(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    if not re.match(
        r"(?:summari[sz]e|sum\s+up|describe|explain|give\s+(?:me\s+)?(?:a|an)\s+(?:\w+\s+)?(?:summary|overview)|"
        r"what\s+is\s+(?:in\s+)?(?:this|the)\s+(?:repository|repo|project|directory|folder)\b|"
        r"tell\s+(?:me\s+)?about)\b",
        clause,
        re.IGNORECASE,
    ):
        return None
    files = files_in(clause, clauses, before)
    is_about_files = files != Files() or is_here(clause) or re.search(r"\bfiles?\b", clause, re.IGNORECASE)
    return Summarise(files=files) if is_about_files else None


def _count(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    if not re.match(
        r"(?:count|how\s+(?:many|often|long|big|large|much)|what\s+is\s+the\s+number|tell\s+me\s+how|which\s+(?:one|file))\b",
        clause,
        re.IGNORECASE,
    ):
        return None
    occurrences = re.search(
        rf"(?:how\s+often\s+(?:does|do|is|are)\s+|(?:occurrences|mentions|uses|appearances)\s+of\s+|count\s+(?=(?:{ATOM})))"
        r"(?:the\s+(?:word|text|words)\s+)?(?P<text>.+)",
        clause,
        re.IGNORECASE,
    )
    if occurrences is not None:
        text = clauses.spelled(_sought(occurrences["text"]))
        rest = clause.replace(_sought(occurrences["text"]), " ", 1)
        return FindText(text=text, files=files_in(rest, clauses), only_count=True) if text else None
    files = files_in(clause, clauses, before)
    if clause[:5].lower() == "which" and not files.pick:
        return None
    if found := re.search(r"\b(lines?|words?|characters?)\b", clause, re.IGNORECASE):
        return CountLines(files=files, unit=f"{found[1].lower().rstrip('s')}s")
    if files.paths or files.pick:
        return CountLines(files=files)
    if (
        re.search(r"\b(?:files?|tests?|scripts?|modules?|documents?|directories|folders)\b", clause, re.IGNORECASE)
        or files.kind
    ):
        return CountFiles(files=files)
    return None


def _find(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = re.match(
        r"(?:find|search|grep|look(?!\s+(?:at|into)\b)|locate|where|which\s+files?)\b\s*(?:me\s+)?(?:out\s+)?(?P<rest>.+)",
        clause,
        re.IGNORECASE,
    )
    if found is None:
        return None
    rest = re.sub(
        r"^(?:(?:for|where|which\s+files?|all|the|every|any|places?|lines?|occurrences?|mentions?|uses?|of|is|are|does|do|"
        r"that|with|contains?|containing|mentions?|texts?|words?|phrases?|up)\s+)+",
        "",
        found["rest"],
        flags=re.IGNORECASE,
    )
    if re.fullmatch(r"(?:[\w.+]+\s+){0,2}files?", rest, re.IGNORECASE) and found["rest"] != rest:
        return ListFiles(files=files_in(clause, clauses), is_deep=True)
    named = re.match(rf"(?:a\s+)?files?\s+(?:named|called)?\s*(?P<name>{ATOM}|\S+)", rest, re.IGNORECASE)
    if named is not None or re.fullmatch(r"[\w*?.-]*\*[\w*?.-]*", rest):
        name = clauses.spelled(named["name"] if named else rest)
        return FindFile(name=name, directory=directory_in(rest[named.end() :], clauses) or "." if named else ".")
    text = _sought(rest)
    files = files_in(rest.replace(text, " ", 1), clauses)
    if re.fullmatch(r"[\w+@-]+(?:\.[\w+@-]+)*\.[A-Za-z]\w{0,9}", text) and not _QUESTION_TAIL.search(rest):
        return FindFile(name=text, directory=files.directory)
    return FindText(text=clauses.spelled(text), files=files) if text else None


def _sought(words: str) -> str:
    """The text that is looked for: quoted, or what is left without the words around it."""
    quoted = re.search(ATOM, words)
    if quoted is not None:
        return quoted[0]
    text = _QUESTION_TAIL.sub("", f" {words}")
    text = _WHERE_TAIL.sub("", text)
    text = re.sub(r"^\s*(?:the|a|an)\s+(?:word|text|term|string|phrase)\s+", "", text, flags=re.IGNORECASE)
    return text.strip(" ?.!,:")[:200]


def _list(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    found = re.match(
        r"(?:list|ls|show|display|print|give|what|which|view|tell)\b\s*(?P<rest>.*)", clause, re.IGNORECASE
    )
    if found is None:
        return None
    word = clause.split(maxsplit=1)[0].lower()
    files = files_in(clause, clauses, before)
    is_deep = bool(re.search(r"\ball\b|\brecursive|\bevery\b|\btree\b|\bdeep", clause, re.IGNORECASE))
    about_files = re.search(
        r"\b(?:files?|folders?|directory|directories|contents|entries|there|here)\b", clause, re.IGNORECASE
    )
    if word in ("list", "ls"):
        if len(files.paths) == 1 and files.directory == ".":
            files = Files(directory=files.paths[0].rstrip("/") or "/")
        return ListFiles(files=files, is_deep=is_deep)
    if about_files and not files.paths:
        return ListFiles(files=files, is_deep=is_deep)
    return None


def _read(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    if not re.match(
        r"(?:read|show|display|print|open|cat|view|what|give|tell|look\s+(?:at|into))\b", clause, re.IGNORECASE
    ):
        return None
    files = files_in(clause, clauses, before)
    named = files.paths or (paths_in(clause, clauses) if not files.kind else ())
    if not named and not files.pick and files is not before:
        return None
    first, most = _range(clause)
    return ReadFiles(files=Files(paths=named) if named else files, first=first, most=most)


def _range(clause: str) -> tuple[int, int | None]:
    if found := re.search(r"\bfirst\s+(\d{1,6})\s+lines\b", clause, re.IGNORECASE):
        return 1, max(1, int(found[1]))
    if found := re.search(r"\blines?\s+(\d{1,7})(?:\s*(?:-|to|until|through)\s*(\d{1,7}))?", clause, re.IGNORECASE):
        first = max(1, int(found[1]))
        return first, max(1, int(found[2] or found[1]) - first + 1)
    return 1, None


def _help(clause: str, clauses: Clauses, before: Files | None) -> Intent | None:
    return Help() if _HELP.match(clause) and not is_here(clause) else None


_RULES: tuple[_Rule, ...] = (
    _run,
    _replace,
    _todo,
    _fetch,
    _write,
    _summarise,
    _count,
    _help,
    _find,
    _list,
    _read,
)
