"""Figures about turns for OpenTelemetry, if the application has set up its metrics; nothing without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

_COUNTERS = {
    "amplifier.turns.attempts": "Attempts of turns that workers have begun",
    "amplifier.turns.takeovers": "Attempts of turns whose worker had died",
    "amplifier.turns.ended": "Attempts that have ended their turn or hold it, by state",
}
_GAUGES = {
    "amplifier.turns.open": ("{turn}", "Turns that have not ended, by state"),
    "amplifier.turns.oldest": ("s", "Age of the oldest turn that has not ended"),
}
_DELAY = "amplifier.turns.delay"


@cache
def _instruments() -> dict[str, Any]:
    try:
        from opentelemetry import metrics  # noqa: PLC0415 — belongs to an extra
    except ImportError:
        return {}
    meter = metrics.get_meter("amplifier.durable")
    made: dict[str, Any] = {name: meter.create_counter(name, "{turn}", text) for name, text in _COUNTERS.items()}
    made |= {name: meter.create_gauge(name, unit, text) for name, (unit, text) in _GAUGES.items()}
    made[_DELAY] = meter.create_histogram(_DELAY, "s", "From the start of a turn until a worker begins it")
    return made


def is_measured() -> bool:
    """Whether someone reads the figures; else they need not be asked for."""
    if not _instruments():
        return False
    from opentelemetry import metrics  # noqa: PLC0415 — belongs to an extra

    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def count_attempt(*, is_takeover: bool, delay: float | None) -> None:
    """A worker has begun an attempt; of the first one, how long the turn has waited."""
    if made := _instruments():
        made["amplifier.turns.attempts"].add(1)
        if is_takeover:
            made["amplifier.turns.takeovers"].add(1)
        if delay is not None:
            made[_DELAY].record(max(delay, 0.0))


def count_end(state: str) -> None:
    """An attempt has ended its turn, or holds it."""
    if made := _instruments():
        made["amplifier.turns.ended"].add(1, {"state": state})


def note_counts(states: Mapping[Any, int], oldest: float) -> None:
    """How many turns there are now."""
    if made := _instruments():
        for state in ("queued", "running", "held"):
            made["amplifier.turns.open"].set(states.get(state, 0), {"state": state})
        made["amplifier.turns.oldest"].set(oldest)
