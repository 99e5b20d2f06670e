"""Whether what is installed is what a distribution asks for.

An installer checks that once; a later ``pip install`` of something else may replace an SDK by a version that a module does not know,
which then fails somewhere inside with an AttributeError.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_LIMIT: Final = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?\s*$")
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
    "~=": operator.ge,
}


def unmet_requirements(distribution: str, extra: str | None = None) -> list[str]:
    """What an installed distribution asks for and is installed in another version, in words; what is not installed is not named.

    Args:
        distribution: Whose requirements.
        extra: One of its extras; without one, what it needs always.
    """
    found = []
    try:
        declared = requires(distribution) or []
    except (PackageNotFoundError, ValueError):
        return []
    for text in declared:
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        name, limits, marker = match.groups()
        # Without an extra: what is needed always, on every system.
        wanted = rf"extra\s*==\s*['\"]{re.escape(extra or '')}['\"]"
        if marker is not None if extra is None else re.search(wanted, marker or "") is None:
            continue
        try:
            installed = version(name)
        except (PackageNotFoundError, ValueError):
            continue
        if not all(_holds(installed, limit) for limit in limits.split(",") if limit.strip()):
            found.append(f"{distribution} needs {name} {limits.strip()}, and {installed} is installed")
    return found


def _holds(installed: str, limit: str) -> bool:
    """Whether a version keeps a limit; one that cannot be read is taken to be kept."""
    match, given = _LIMIT.match(limit), re.match(r"\d+(?:\.\d+)*", installed)
    if match is None or given is None:
        return True
    compare, wanted = match[1], [int(part) for part in match[2].split(".")]
    parts = [int(part) for part in given[0].split(".")]
    if match[3] or compare == "~=":
        series = wanted if match[3] else wanted[:-1]
        same = parts[: len(series)] == series
        return not same if compare == "!=" else same and (bool(match[3]) or parts >= wanted)
    size = max(len(parts), len(wanted))
    return _COMPARED[compare](parts + [0] * (size - len(parts)), wanted + [0] * (size - len(wanted)))
