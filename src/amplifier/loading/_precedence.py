"""Which one is used when several distributions provide one module id: a third-party one before the built-in, or the pinned one.

Published modules carry the ids of built-in ones (``tool-bash``, ``loop-basic``, ``provider-openai``). Whoever installs one means it.
A plan pins one of them by its ``source``: ``"builtin"``, or ``{"distribution": "NAME"}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from amplifier.errors import ModuleConflictError, ModuleLoadError

from ._discovery import EntryPoint, entry_points, normalized

BUILT_IN: Final = "builtin"
"""The source that means the module of this package."""

_DISTRIBUTION: Final = "distribution"


@attrs.frozen
class Pin:
    """A source that names an installed distribution.

    Attributes:
        distribution: Its name; None for the built-in module.
    """

    distribution: str | None

    def fits(self, claim: EntryPoint) -> bool:
        """Whether this is the claim that is meant."""
        if self.distribution is None:
            return claim.is_built_in
        return normalized(claim.distribution) == normalized(self.distribution)

    def __str__(self) -> str:
        return "the built-in one" if self.distribution is None else f"the distribution {self.distribution!r}"


def read_pin(source: Any) -> Pin | None:
    """The pin that a source is; None for one that means something else, such as a path or what a resolver reads."""
    if isinstance(source, str) and source == BUILT_IN:
        return Pin(None)
    if isinstance(source, Mapping) and set(source) == {_DISTRIBUTION}:
        name = source[_DISTRIBUTION]
        if isinstance(name, str) and name.strip():
            return Pin(name.strip())
    return None


def pin_for(claim: EntryPoint) -> str | dict[str, str]:
    """What a plan has as ``source`` to pin a claim."""
    return BUILT_IN if claim.is_built_in else {_DISTRIBUTION: claim.distribution}


def choose(module_id: str, claims: Sequence[EntryPoint]) -> EntryPoint | None:
    """The claim to use where the plan pins none; None when there is no claim.

    Raises:
        ModuleConflictError: Several third-party distributions claim the id.
    """
    others = [claim for claim in claims if not claim.is_built_in]
    if len(others) > 1:
        named = " and by ".join(f"{claim} ({claim.metadata})" for claim in others)
        pins = " or ".join(f'"source": {json.dumps(pin_for(claim))}' for claim in claims)
        raise ModuleConflictError(
            f"module {module_id!r} is claimed by {named}; uninstall all but one of them, or pin one in the mount plan: {pins}",
            module_id=module_id,
        )
    return next(iter([*others, *claims]), None)


def find_pinned(module_id: str, claims: Sequence[EntryPoint], pin: Pin) -> EntryPoint:
    """The claim that a plan pins.

    Raises:
        ModuleLoadError: It does not exist; the message lists those that do.
    """
    found = next((claim for claim in claims if pin.fits(claim)), None)
    if found is not None:
        return found
    provided = sorted(each.module_id for all_ in entry_points().values() for each in all_ if pin.fits(each))
    instead = " or ".join(f"{json.dumps(pin_for(claim))} ({claim})" for claim in claims)
    raise ModuleLoadError(
        f"module {module_id!r} is pinned to {pin}, which does not provide it; "
        + (f"it provides {', '.join(provided)}; " if provided else "it is not installed or provides no modules; ")
        + (
            f"{module_id!r} is provided by {instead}" if claims else f"no installed distribution provides {module_id!r}"
        ),
        module_id=module_id,
        reason_code="missing_source",
    )


def is_built_in(module_id: str) -> bool:
    """Whether a plan that pins nothing gets the built-in module of an id, as far as installed distributions go."""
    claims = entry_points().get(module_id, ())
    return bool(claims) and all(claim.is_built_in for claim in claims)
