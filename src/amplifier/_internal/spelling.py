"""Which known name an unknown one was probably meant to be, and the question ``did you mean 'x'?``.

`nearest_names`, `nearest` and `suggestion` serve a message that is written in any case, so they are generous. `misspelt` decides
whether an unknown name is a mistake at all, where unknown names are allowed, so it is strict; `misspelt_key` knows abbreviations, too.
`warn_caller` reports a mistake at the line that made it, `warn_of_misspelt_event` an event that nothing emits.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from functools import lru_cache
from types import FrameType
from typing import Final

from amplifier.errors import MisspellingWarning
from amplifier.events import CATALOGUE

_LONGEST: Final = 200
"""Characters from which on a name is not compared: comparing takes time in the square of the length."""


def nearest_names(
    name: object, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6
) -> list[str]:
    """The known names that resemble a name, the most similar first; case does not count.

    Args:
        most: How many at most.
        cutoff: How similar they must be, from 0 to 1.
    """
    if not isinstance(name, str) or len(name) > _LONGEST:
        return []
    from difflib import get_close_matches  # noqa: PLC0415  # needed after a mistake only, and slow to import

    folded = {each.casefold(): each for each in known}
    return [folded[each] for each in get_close_matches(name.casefold(), folded, most, cutoff)]


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that resembles a name most; None if none does."""
    return next(iter(nearest_names(name, known, most=1, cutoff=cutoff)), None)


def did_you_mean(*names: str) -> str:
    """The question about the names that were probably meant."""
    return f"did you mean {' or '.join(map(repr, names))}?"


def suggestion(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: ``; did you mean 'x'?``, or nothing."""
    near = nearest(name, known, cutoff=cutoff)
    return "" if near is None else f"; {did_you_mean(near)}"


def misspelt(name: object, known: frozenset[str]) -> str | None:
    """The known name that an unknown one is a misspelling of; None if it is a name of its own.

    A misspelling differs in case or separators only, or by one slip (a letter left out, added, replaced or moved; two slips from ten
    letters on).
    """
    return _misspelt(name, known) if type(name) is str and len(name) <= _LONGEST else None


@lru_cache(maxsize=1024)  # registering and building ask for the same few names again and again
def _misspelt(name: str, known: frozenset[str]) -> str | None:
    given = _plain(name)
    found = [(slips, each) for each in known if (slips := _slips(given, _plain(each))) is not None]
    return min(found)[1] if found else None


def misspelt_key(key: object, known: Iterable[str]) -> str | None:
    """The known key that an unknown one is a misspelling of, or the larger part, such as ``on_fail`` of ``on_failure``."""
    names = frozenset(known)
    if (meant := misspelt(key, names)) is not None:
        return meant
    given = _plain(key) if isinstance(key, str) else ""
    longer = {
        each
        for each in names
        if _plain(each).startswith(given) and 2 * len(given) > len(_plain(each))
    }
    return min(longer, default=None) if len(given) >= 4 else None


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")


def _slips(given: str, meant: str) -> int | None:
    """How many letters were left out, added, replaced or moved between one name and the other; None if it is another name."""
    shorter, longer = sorted((len(given), len(meant)))
    allowed = 0 if shorter < 3 else 1 if shorter < 10 else 2
    if longer - shorter > allowed:
        return None
    from difflib import SequenceMatcher  # noqa: PLC0415  # the same

    matched = sum(
        block.size
        for block in SequenceMatcher(None, given, meant, autojunk=False).get_matching_blocks()
    )
    return longer - matched if longer - matched <= allowed else None


def warn_caller(message: str, *inside: str) -> None:
    """Emit a `MisspellingWarning` at the line that called into this project; none if that line is the project's own.

    Args:
        message: What was found, and what was probably meant.
        inside: Beginnings of the names of modules whose frames are passed over; generated code is, too.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _module_of(frame, inside[0]).startswith(inside):
        frame, level = frame.f_back, level + 1
    if not _module_of(frame, "").startswith(
        "amplifier."
    ):  # a type checker has read what is written there
        warnings.warn(message, MisspellingWarning, stacklevel=level)


def _module_of(frame: FrameType, unknown: str) -> str:
    return str(frame.f_globals.get("__name__", unknown))


# ── misspelt events ──────────────────────────────────────────────────────────────────────────────


_BY_NAMESPACE: Final = {
    namespace: frozenset(
        event.partition(":")[2] for event in CATALOGUE if event.startswith(f"{namespace}:")
    )
    for namespace in {event.partition(":")[0] for event in CATALOGUE}
}


@lru_cache(maxsize=1024)  # modules register the same names in every session
def meant_event(event: str) -> str | None:
    """The event of the catalogue that a name outside of it is a misspelling of; a handler for it would never be called.

    In a namespace of the catalogue the rest may be misspelt. Another namespace may be a module's own: it counts as misspelt only if
    the rest is exactly an event's and it is not a longer word, such as ``plans`` for ``plan``.
    """
    namespace, _, name = event.partition(":")
    if namespace in _BY_NAMESPACE:
        meant = misspelt(name, _BY_NAMESPACE[namespace])
        return None if meant is None else f"{namespace}:{meant}"
    meant = misspelt(namespace, frozenset(_BY_NAMESPACE))
    if meant is None or namespace.startswith(meant) or name.casefold() not in _BY_NAMESPACE[meant]:
        return None
    return f"{meant}:{name.casefold()}"


def warn_of_misspelt_event(event: str, *inside: str) -> None:
    """Warn of a handler for an event that is nearly one of the catalogue, at the line that names it; events may have any name."""
    if event not in CATALOGUE and event != "*" and (meant := meant_event(event)) is not None:
        nearly = f"a handler is registered for {event!r}, which is no event of the catalogue; {did_you_mean(meant)}"
        warn_caller(nearly, __name__, *inside)
