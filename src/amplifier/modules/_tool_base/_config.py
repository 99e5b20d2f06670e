"""Reading a tool module's part of the mount plan: every problem at once, and no unknown key.

Unlike the loops, tools refuse keys they do not know: a misspelt ``allowed_paths`` would otherwise mean the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from amplifier._spelling import suggestion
from amplifier.errors import PlanError

Check: TypeAlias = Callable[[Any], str | None]
"""What is wrong with a value, in words; None if nothing is."""


def read_config(module: str, config: Mapping[str, Any] | None, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return a copy of the config once every key is known and every value fits.

    Raises:
        PlanError: With one problem per key, each under its ``$.path``.
    """
    given = dict(config or {})
    problems: list[tuple[str, str]] = []
    for key, value in given.items():
        if key not in checks:
            hint = suggestion(key, checks) or f"; expected one of {', '.join(checks)}"
            problems.append((f"$.{key}", f"unknown key{hint}"))
        elif problem := checks[key](value):
            problems.append((f"$.{key}", problem))
    if problems:
        raise PlanError(problems, subject=f"invalid config of {module}")
    return given


def count(minimum: int) -> Check:
    """A whole number of at least `minimum`."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            return f"expected a whole number of at least {minimum}, got {value!r}"
        return None

    return check


def flag(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else f"expected true or false, got {value!r}"


def seconds(value: Any) -> str | None:
    """A positive number of seconds; there is always a limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return f"expected a positive number of seconds, got {value!r}"
    return None


def texts(*, least: int = 0) -> Check:
    """A list of at least so many non-empty texts."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            return f"expected a list of non-empty texts, got {value!r}"
        return None if len(value) >= least else f"expected at least {least} of them, got {value!r}"

    return check


def one_of(choices: Collection[str], *, several: bool = False) -> Check:
    """One of some words, or a list of them."""

    def check(value: Any) -> str | None:
        given = value if several and isinstance(value, list | tuple) else [value]
        if (several and given is not value) or not all(isinstance(item, str) and item in choices for item in given):
            kind = "a list of" if several else "one of"
            return f"expected {kind} {', '.join(map(repr, choices))}, got {value!r}"
        return None

    return check
