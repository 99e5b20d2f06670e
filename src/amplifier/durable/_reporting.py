"""What others hear of turns: figures for OpenTelemetry, and a call back when a turn has ended.

The figures exist if the application has set up its metrics. The call back is a POST of the turn's status as JSON, at least once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import anyio
import anyio.to_thread
import attrs
import orjson

from ._values import TurnStatus

# ── figures ───────────────────────────────────────────────────────────────────────────────────────


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
    made: dict[str, Any] = {
        name: meter.create_counter(name, "{turn}", text) for name, text in _COUNTERS.items()
    }
    made |= {name: meter.create_gauge(name, unit, text) for name, (unit, text) in _GAUGES.items()}
    made[_DELAY] = meter.create_histogram(
        _DELAY, "s", "From the start of a turn until a worker begins it"
    )
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


# ── the call back ─────────────────────────────────────────────────────────────────────────────────


MOST_TRIES = 12
"""Over about an hour and a half; then the notice is given up, with a warning."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 1200.0
"""Seconds before the second try, and at most; each pause is twice as long as the one before."""
POST_SECONDS = 10.0

NOT_TAKEN = (OSError, HTTPException, ValueError)
"""What `post` raises if the notice was not taken."""


class _NoRedirect(HTTPRedirectHandler):
    """An answer that names another address is none: urllib would ask there without the status."""

    def redirect_request(self, *_: object) -> None:
        return None


def pause_after(tries: int) -> float:
    """Seconds before the next try."""
    return min(FIRST_PAUSE * 2.0**tries, LONGEST_PAUSE) + POST_SECONDS


async def post(url: str, status: TurnStatus) -> None:
    """Send the status of a turn.

    Raises:
        OSError: It was not taken; or another of `NOT_TAKEN`.
    """
    body = orjson.dumps(attrs.asdict(status))

    def send() -> None:
        if urlsplit(url).scheme not in (
            "http",
            "https",
        ):  # `start` has checked it, others who write there have not
            raise ValueError("expected a URL of http or https")
        request = Request(url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            build_opener(_NoRedirect).open(request, timeout=POST_SECONDS).close()
        except HTTPError as error:
            error.close()
            raise OSError(f"it answered with {error.code}") from None

    with anyio.fail_after(
        POST_SECONDS
    ):  # that of urllib is for each step, and an answer may come in many
        await anyio.to_thread.run_sync(send, abandon_on_cancel=True)
