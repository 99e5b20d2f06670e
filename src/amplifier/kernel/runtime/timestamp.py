"""The timestamp on every event: UTC, ISO 8601, microseconds.

``datetime.now(UTC).isoformat()`` is more than half the price of a one-handler emit; the text of a second is the same for all
its microseconds, so it is made once per second.
"""

from __future__ import annotations

import time

_cached = (-1, "")  # one tuple, so that threads never see a second with another second's text


def timestamp() -> str:
    """The current time, such as ``2026-01-31T12:00:00.000001+00:00``."""
    global _cached  # noqa: PLW0603 — a cache of one tuple; every value it can hold is right
    nanoseconds = time.time_ns()
    second = nanoseconds // 1_000_000_000
    cached = _cached
    if cached[0] != second:
        cached = _cached = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
    return f"{cached[1]}.{nanoseconds // 1000 % 1_000_000:06d}+00:00"
