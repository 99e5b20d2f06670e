"""Whether the name of an event that is not in the catalogue was probably meant to be one that is.

Events may have any name, so an unknown one is no error; a handler for ``tool:per`` would just never be called.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from amplifier._spelling import did_you_mean, misspelt, warn_caller
from amplifier.events import CATALOGUE


def _names_by_namespace() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for event in CATALOGUE:
        namespace, _, name = event.partition(":")
        found.setdefault(namespace, set()).add(name)
    return {namespace: frozenset(names) for namespace, names in found.items()}


_BY_NAMESPACE: Final = _names_by_namespace()
_NAMESPACES: Final = frozenset(_BY_NAMESPACE)


def warn_if_misspelt(event: str) -> None:
    """Warn, at the line outside the kernel that registers a handler, about an event that was probably meant otherwise."""
    meant = meant_event(event)
    if meant is not None:
        warn_caller(
            f"a handler is registered for {event!r}, which is no event of the catalogue; {did_you_mean(meant)}",
            "amplifier.kernel.",
        )


@lru_cache(maxsize=1024)  # modules register the same names in every session
def meant_event(event: str) -> str | None:
    """The event of the catalogue that a name outside of it is a misspelling of.

    In a namespace of the catalogue the rest may be misspelt. Another namespace may be a module's own: it counts as misspelt only if
    the rest is exactly an event's and it is not a longer word, such as ``plans`` for ``plan``.
    """
    namespace, _, name = event.partition(":")
    if namespace in _NAMESPACES:
        meant = misspelt(name, _BY_NAMESPACE[namespace])
        return None if meant is None else f"{namespace}:{meant}"
    meant = misspelt(namespace, _NAMESPACES)
    if meant is None or namespace.startswith(meant) or name.casefold() not in _BY_NAMESPACE[meant]:
        return None
    return f"{meant}:{name.casefold()}"
