"""Which module id was probably meant by one that nothing provides."""

from __future__ import annotations

from collections.abc import Iterable

from amplifier._spelling import nearest_names, resemble

__all__ = ["is_near", "nearest_module"]

_NEAR_ID = 0.75
_NEAR_NAME = 0.6
"""Half of an id is its kind, which ids have in common; what follows has to be similar by itself."""


def is_near(given: str, known: str) -> bool:
    """Whether one id is easily written for the other."""
    name, other = (module_id.partition("-")[2] or module_id for module_id in (given, known))
    return resemble(name, other, cutoff=_NEAR_NAME)


def nearest_module(given: str, known: Iterable[str]) -> str | None:
    """The id that was perhaps meant; None if nothing is really near."""
    return next((other for other in nearest_names(given, known, cutoff=_NEAR_ID) if is_near(given, other)), None)
