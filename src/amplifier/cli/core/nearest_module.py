"""What somebody perhaps meant by a module id that nothing provides. Above: messages. Below: nothing of ours."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from amplifier._spelling import nearest_names

__all__ = ["is_near", "nearest_module"]

_NEAR_ID = 0.75
_NEAR_NAME = 0.6
"""Half of an id is its kind, which ids have in common; what stands behind it has to be near by itself."""


def is_near(given: str, known: str) -> bool:
    """Whether one id is easily written for the other."""
    name, other = (module_id.partition("-")[2] or module_id for module_id in (given, known))
    return SequenceMatcher(None, name, other).ratio() >= _NEAR_NAME


def nearest_module(given: str, known: Iterable[str]) -> str | None:
    """The id that was perhaps meant; None if nothing is really near."""
    return next((other for other in nearest_names(given, known, cutoff=_NEAR_ID) if is_near(given, other)), None)
