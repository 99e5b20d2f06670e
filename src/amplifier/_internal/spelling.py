"""Suggestions for unknown names, and the detection of misspelt ones.

`nearest` and similar functions improve an error that is raised in any case, so they are generous.
`misspelt` decides whether an allowed unknown name is a mistake at all, so it is strict.
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

# Longer names are not compared, because the time of a comparison is quadratic in the length.
_MAX_LENGTH: Final = 200


def nearest_names(
    name: object, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6
) -> list[str]:
    """Return the known names that resemble a name, the most similar first. Case is ignored.

    Args:
        name: The unknown name.
        known: The known names.
        most: Maximum number of results.
        cutoff: Minimum similarity, from 0 to 1.
    """
    if not isinstance(name, str) or len(name) > _MAX_LENGTH:
        return []
    # Slow to import, and needed only after a mistake.
    from difflib import get_close_matches  # noqa: PLC0415

    folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(name.casefold(), folded, most, cutoff)
    return [folded[match] for match in matches]


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a name, or None if none resembles it."""
    return next(iter(nearest_names(name, known, most=1, cutoff=cutoff)), None)


def did_you_mean(*names: str) -> str:
    """Return the question ``did you mean 'x'?``."""
    return f"did you mean {' or '.join(map(repr, names))}?"


def suggestion(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown name: ``; did you mean 'x'?``, or nothing."""
    near = nearest(name, known, cutoff=cutoff)
    return "" if near is None else f"; {did_you_mean(near)}"


def misspelt(name: object, known: frozenset[str]) -> str | None:
    """Return the known name of which an unknown one is a misspelling, or None.

    A misspelling differs only in case or separators, or by one letter that is left out, added,
    replaced or moved. From ten letters on, it may be two.
    """
    return _misspelt(name, known) if type(name) is str and len(name) <= _MAX_LENGTH else None


# This is cached because registering and building check the same few names repeatedly.
@lru_cache(maxsize=1024)
def _misspelt(name: str, known: frozenset[str]) -> str | None:
    plain = _plain(name)
    slips = {candidate: _slips(plain, _plain(candidate)) for candidate in known}
    ranked = [(count, candidate) for candidate, count in slips.items() if count is not None]
    return min(ranked)[1] if ranked else None


def misspelt_key(key: object, known: Iterable[str]) -> str | None:
    """Return the known key of which an unknown one is a misspelling or an abbreviation, or None.

    An abbreviation is more than half of the key, such as ``on_fail`` for ``on_failure``.
    """
    names = frozenset(known)
    if (meant := misspelt(key, names)) is not None:
        return meant
    plain = _plain(key) if isinstance(key, str) else ""
    if len(plain) < 4:
        return None
    longer = [name for name in names if _plain(name).startswith(plain)]
    return min((name for name in longer if 2 * len(plain) > len(_plain(name))), default=None)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")


def _slips(name: str, meant: str) -> int | None:
    """Return the number of letters that differ, or None if the names differ too much."""
    shorter, longer = sorted((len(name), len(meant)))
    allowed = 0 if shorter < 3 else 1 if shorter < 10 else 2
    if longer - shorter > allowed:
        return None
    # Slow to import, and needed only after a mistake.
    from difflib import SequenceMatcher  # noqa: PLC0415

    blocks = SequenceMatcher(None, name, meant, autojunk=False).get_matching_blocks()
    different = longer - sum(block.size for block in blocks)
    return different if different <= allowed else None


def warn_caller(message: str, *inside: str) -> None:
    """Emit a `MisspellingWarning` at the line that called into this project.

    There is no warning for a line of the project itself.

    Args:
        message: Text of the warning.
        inside: Prefixes of the names of modules whose frames are skipped, like those of generated
            code.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _module_of(frame, inside[0]).startswith(inside):
        frame, level = frame.f_back, level + 1
    # A type checker reads the project's own code.
    if not _module_of(frame, "").startswith("amplifier."):
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


# This is cached because modules register the same names in every session.
@lru_cache(maxsize=1024)
def meant_event(event: str) -> str | None:
    """Return the event of the catalogue of which another name is a misspelling, or None.

    Another namespace may belong to a module. It counts as misspelt only if the rest is exactly the
    name of an event, and if it is not a longer word, such as ``plans`` for ``plan``.
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
    """Warn about a handler for a misspelt event of the catalogue, at the line that registers it."""
    if event not in CATALOGUE and event != "*" and (meant := meant_event(event)) is not None:
        warn_caller(
            f"a handler is registered for {event!r}, which is not an event of the catalogue; "
            f"{did_you_mean(meant)}",
            __name__,
            *inside,
        )
