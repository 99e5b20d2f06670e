"""A prompt in clauses: one verb each, quoted text kept whole.

Quoted text (in quotes, backticks or a fence) is taken out first and stands as one sign, so that nothing in it is read as
words of a request.
"""

from __future__ import annotations

import re

import attrs

_OPEN, _CLOSE = "\ue000", "\ue001"

ATOM = rf"{_OPEN}\d+{_CLOSE}"
"""The pattern of a quoted text's sign."""

_QUOTED = re.compile(
    r"```[^\n`]*\n(?P<fence>[^`]*(?:`{1,2}(?!`)[^`]*)*)```"
    r"|`(?P<tick>[^`\n]+)`"
    r"|\"(?P<double>[^\"\n]+)\""
    r"|“(?P<curly>[^”\n]+)”"
    r"|(?<!\w)'(?P<single>[^'\n]+)'(?!\w)"
)

_VERBS = (
    "list|ls|show|display|print|read|open|cat|view|find|search|grep|look|locate|where|which|count|how|what|"
    r"summari[sz]e|sum\s+up|describe|write|save|store|create|make|put|run|execute|replace|change|fetch|download|"
    "add|tell|give|help|explain|compare|delete|remove|rename|move"
)
_FILLERS = (
    r"(?:(?:please|now|also|then|next|first|second|third|finally|lastly|and|but|so|ok|okay|hi|hello|hey|kindly|just|"
    r"can\s+you|could\s+you|would\s+you|will\s+you|i\s+want\s+you\s+to|i\s+would\s+like\s+you\s+to|i'd\s+like\s+you\s+to|"
    r"let's|let\s+us|you\s+should|step\s+\d+|\d+[.)]|[-*•])[\s,:]+)*"
)
_FILLER = re.compile(_FILLERS, re.IGNORECASE)
_STARTS_WITH_VERB = re.compile(rf"(?:{_VERBS})\b", re.IGNORECASE)

_SPACES = re.compile(r"[^\S\n]+")
_HARD = r"[;\n]+|[.!?]+(?=\s|$)"
_SOFT = r", ?|: |:\n| (?:and|then|also|but|plus) "
_SEPARATOR = re.compile(rf"(?P<hard>{_HARD})|(?P<soft>{_SOFT})", re.IGNORECASE)
_TAKES_THE_REST = re.compile(r"(?:write|save|put|create|make|store|run|execute)\b", re.IGNORECASE)

_FIRST_OF_SEVERAL = re.compile(r"\s*1[.)]\s")
_NEXT_OF_SEVERAL = re.compile(rf"\s(?:[2-9]|1\d)[.)]\s(?={_FILLERS}(?:{_VERBS})\b)", re.IGNORECASE)

_MOST_CLAUSES = 12
_LONGEST_CLAUSE = 1_000


@attrs.frozen
class Clauses:
    """A prompt's clauses, and the quoted texts that stand in them as signs.

    Attributes:
        clauses: In order.
        quoted: The texts, by the number of their sign.
        left_out: Clauses beyond those that are looked at.
    """

    clauses: tuple[str, ...]
    quoted: tuple[str, ...]
    left_out: int = 0

    def spelled(self, text: str) -> str:
        """Text with every sign replaced by what it stands for."""
        return re.sub(rf"{_OPEN}(\d+){_CLOSE}", lambda found: self.quoted[int(found[1])], text)


def split_clauses(prompt: str) -> Clauses:
    """Split a prompt."""
    quoted: list[str] = []

    def keep(found: re.Match[str]) -> str:
        # The newline after a fence's first line is not part of its text; the one before its end is.
        quoted.append(next(text for text in found.groupdict().values() if text is not None))
        return f"{_OPEN}{len(quoted) - 1}{_CLOSE}"

    text = _QUOTED.sub(keep, prompt.replace(_OPEN, "").replace(_CLOSE, ""))
    text = _SPACES.sub(" ", text)  # what follows is not linear in a run of spaces
    if _FIRST_OF_SEVERAL.match(text):
        text = _NEXT_OF_SEVERAL.sub("\n", text)
    clauses = [clause for part in _parts(text) if (clause := _FILLER.sub("", part.strip(), count=1).strip(" ,:-"))]
    shown = tuple(clause[:_LONGEST_CLAUSE] for clause in clauses[:_MOST_CLAUSES])
    return Clauses(shown, tuple(quoted), max(0, len(clauses) - _MOST_CLAUSES))


def _parts(text: str) -> list[str]:
    """Cut at the end of a sentence, and elsewhere only before a verb: ``read a.txt and b.txt`` stays one."""
    parts: list[str] = [""]
    position = 0
    for found in _SEPARATOR.finditer(text):
        parts[-1] += text[position : found.start()]
        position = found.end()
        rest = text[position : position + 200]
        if found["hard"] is None and ":" in found["soft"] and _TAKES_THE_REST.match(_bare(parts[-1])):
            parts[-1] += ": " + text[position:]
            return parts
        following = _bare(rest)
        if found["hard"] or _STARTS_WITH_VERB.match(following):
            parts.append("")
        else:
            parts[-1] += found["soft"]
    parts[-1] += text[position:]
    return parts


def _bare(text: str) -> str:
    return _FILLER.sub("", text.strip(), count=1)
