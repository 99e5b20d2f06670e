"""Words of a clause that no rule has used: what they would have changed must not be passed over.

A number that answers another question is worse than none. So a question that counts is answered only if every word
of it was used or says nothing; other requests are carried out without a word that is unknown, and the answer says so,
unless the word is one that changes which files are meant.
"""

from __future__ import annotations

import re

from ._clauses import Clauses
from ._intents import Intent, Unknown

TAKEN = "\0"
"""Stands in a clause for each character that was used."""

_USED_NEXT = re.compile(r"\s*\0+")
_WORD = re.compile(r"[^\s\0,;:?!()]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAYS_NOTHING = _words(
    "a again all also altogether an and any are at can contents currently do does every exist exists file files for "
    "from has have here i in inside is it kindly me my now of on only our overall please recursively so that the them "
    "there these they this those to total us was we were which whole within you your"
)

COUNTING = _words("amount count how many number tell what")
OCCURRING = COUNTING | _words(
    "appear appearances appears called contain containing contains defined found line lines mention mentioned "
    "mentioning mentions occur occurrences occurs often stand stands text times use used uses word words"
)
LOOKING = _words(
    "about cat content deep directories directory display entries folder folders give list look ls open print project "
    "read recursive repo repository say says show shows tell text tree up view what where"
)
SUMMARISING = LOOKING | _words(
    "brief briefly describe explain overview quick quickly short sum summarise summarize summary"
)
FINDING = (
    LOOKING
    | OCCURRING
    | _words("declared described find grep locate out phrase place places referenced said search stated string term")
    | _words("using with written")
)

_CHANGES_WHAT_IS_MEANT = re.compile(
    r"\b(?:not|no|never|neither|nor|without|except\w*|exclud\w+|besides|apart|other|but|unless|outside|omit\w*|ignor\w+|"
    r"skip\w*|only|or|both|contain\w*|includ\w+|match\w+|with|whose|than|larger|smaller|bigger|longer|shorter|greater|more|"
    r"less|fewer|over|under|above|below|least|most|between|exactly|empty|blank|modified|changed|created|edited|newer|older|"
    r"newest|oldest|latest|recent\w*|today|yesterday|since|before|after|last|first|hidden|each|per|by|functions?|class(?:es)?|"
    r"methods?|bytes?|sizes?|directories|folders|start\w*|begin\w*|end\w*)\b|n't\b|n’t\b|\d|^non",
    re.IGNORECASE,
)


def has_qualifier(words: str) -> bool:
    """Whether words say which of several things are meant, or are not."""
    return _CHANGES_WHAT_IS_MEANT.search(words) is not None


def judged(
    intent: Intent, clause: str, rest: str, clauses: Clauses, known: frozenset[str], *, strictly: bool = False
) -> list[Intent]:
    """An intent, with what was not understood beside it; or only that, if the intent would be another than asked for.

    Args:
        intent: What the used words mean.
        clause: All the words.
        rest: The same with `TAKEN` for those that were used.
        clauses: What the signs in it stand for.
        known: Words that say nothing here, beside those that never do.
        strictly: Whether every word counts.
    """
    left = [found for found in _WORD.finditer(rest) if not _is_known(found[0], known)]
    if not left:
        return [intent]
    followed = _USED_NEXT.match(rest, left[-1].end())  # "not" alone says less than "not in src"
    part = clauses.spelled(clause[left[0].start() : followed.end() if followed else left[-1].end()].strip())
    if strictly or any(has_qualifier(found[0]) for found in left):
        return [Unknown(words=clauses.spelled(clause), part=part)]
    return [intent, Unknown(words=part)]


def refused(clause: str, part: str, clauses: Clauses) -> list[Intent]:
    """A clause of which one part cannot be honoured."""
    return [Unknown(words=clauses.spelled(clause), part=clauses.spelled(part).strip())]


def taken(text: str, *spans: tuple[int, int]) -> str:
    """Text with `TAKEN` in place of the characters of the spans; as long as before."""
    for start, end in spans:
        text = text[:start] + TAKEN * (end - start) + text[end:]
    return text


def _is_known(word: str, known: frozenset[str]) -> bool:
    bare = word.strip("\"'`.*_-").lower()
    return not bare or bare in _SAYS_NOTHING or bare in known
