"""What a context's part of the mount plan may say, read once at mount."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.errors import PlanError, Problem

_TARGET_SHARE = 0.625  # of the threshold: 0.5 of the budget for a threshold of 0.8


@attrs.frozen(kw_only=True)
class ContextOptions:
    """How much of the conversation a request may hold.

    Attributes:
        max_tokens: The budget where neither the caller nor the provider gives one.
        compaction_threshold: The share of the budget above which the view is compacted.
        compaction_target: The share that a compaction aims at. The gap up to the threshold is what the conversation
            may grow by before the beginning of the view moves again, which is what keeps a provider's cache warm.
        safety_margin: Tokens held back from a provider's window, because tokens are only estimated.
        chars_per_token: Bytes of JSON text that count as one token.
    """

    max_tokens: int = 100_000
    compaction_threshold: float = 0.8
    compaction_target: float = 0.5
    safety_margin: int = 1000
    chars_per_token: float = 4.0


def _whole(minimum: int, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        return f"expected a whole number of at least {minimum}, got {value!r}"
    return None


def _number(value: Any, most: float, words: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most or math.isinf(value):
        return f"expected {words}, got {value!r}"
    return None


def option_problems(config: Mapping[str, Any] | None) -> list[Problem]:
    """Everything wrong with a context's config, as pairs of ``$.path`` and problem."""
    given = config or {}
    share = "a share of the budget, above 0 and at most 1"
    found = {
        "max_tokens": _whole(1, given.get("max_tokens", 1)),
        "compaction_threshold": _number(given.get("compaction_threshold", 1), 1, share),
        "compaction_target": _number(given.get("compaction_target", 1), 1, share),
        "safety_margin": _whole(0, given.get("safety_margin", 0)),
        "chars_per_token": _number(given.get("chars_per_token", 1), math.inf, "a number above 0"),
    }
    if "compaction_target" in given and not (found["compaction_target"] or found["compaction_threshold"]):
        threshold = given.get("compaction_threshold", 0.8)
        if given["compaction_target"] > threshold:
            found["compaction_target"] = (
                f"expected at most the compaction_threshold ({threshold!r}), got {given['compaction_target']!r}"
            )
    return [(f"$.{name}", problem) for name, problem in found.items() if problem]


def read_options(module: str, config: Mapping[str, Any] | None) -> ContextOptions:
    """Read a context's config; keys it does not know are left to others.

    Raises:
        PlanError: A value is wrong; all of them at once.
    """
    problems = option_problems(config)
    if problems:
        raise PlanError(problems, subject=f"invalid config of {module}")
    names = attrs.fields_dict(ContextOptions)
    given = {name: value for name, value in (config or {}).items() if name in names}
    if "compaction_threshold" in given:
        given.setdefault("compaction_target", given["compaction_threshold"] * _TARGET_SHARE)
    return ContextOptions(**given)
