"""Reports about turns: figures for OpenTelemetry, and a callback when a turn has ended."""

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


# The instruments exist only if the application has set up metrics.


@cache
def _instruments() -> dict[str, Any]:
    try:
        from opentelemetry import metrics  # noqa: PLC0415 — belongs to an extra
    except ImportError:
        return {}
    meter = metrics.get_meter("amplifier.durable")
    instruments: dict[str, Any] = {
        name: meter.create_counter(name, "{turn}", text) for name, text in _COUNTERS.items()
    }
    instruments |= {
        name: meter.create_gauge(name, unit, text) for name, (unit, text) in _GAUGES.items()
    }
    instruments[_DELAY] = meter.create_histogram(
        _DELAY, "s", "From the start of a turn until a worker begins it"
    )
    return instruments


def is_measured() -> bool:
    """Return whether the application exports metrics. If not, counting isn't needed."""
    if not _instruments():
        return False
    from opentelemetry import metrics  # noqa: PLC0415 — belongs to an extra

    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def count_attempt(*, is_takeover: bool, delay: float | None) -> None:
    """Count an attempt, and record the delay before the first attempt of a turn."""
    if instruments := _instruments():
        instruments["amplifier.turns.attempts"].add(1)
        if is_takeover:
            instruments["amplifier.turns.takeovers"].add(1)
        if delay is not None:
            instruments[_DELAY].record(max(delay, 0.0))


def count_end(state: str) -> None:
    """Count an attempt that ended its turn or left it held."""
    if instruments := _instruments():
        instruments["amplifier.turns.ended"].add(1, {"state": state})


def note_counts(states: Mapping[Any, int], oldest: float) -> None:
    """Set the gauges of open turns."""
    if instruments := _instruments():
        for state in ("queued", "running", "held"):
            instruments["amplifier.turns.open"].set(states.get(state, 0), {"state": state})
        instruments["amplifier.turns.oldest"].set(oldest)


# ── the callback ──────────────────────────────────────────────────────────────────────────────────


MAX_TRIES = 12
"""Maximum number of tries for a notice. The last one is after about an hour and a half."""
FIRST_PAUSE, MAX_PAUSE = 2.0, 1200.0
"""Seconds before the second try, and the limit for later pauses, which double each time."""
POST_SECONDS = 10.0

NOT_TAKEN = (OSError, HTTPException, ValueError)
"""The errors that `post` raises for a notice that wasn't accepted."""


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects.

    Following one, urllib would request the other address without the status.
    """

    def redirect_request(self, *_: object) -> None:
        return None


def pause_after(tries: int) -> float:
    """Return the seconds before the next try."""
    return min(FIRST_PAUSE * 2.0**tries, MAX_PAUSE) + POST_SECONDS


async def post(url: str, status: TurnStatus) -> None:
    """Send the status of a turn to its address.

    Raises:
        OSError: The notice wasn't accepted. The other errors in `NOT_TAKEN` mean the same.
    """
    body = orjson.dumps(attrs.asdict(status))

    def send() -> None:
        # `start` has checked the address, but other programs may write to the database.
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("expected a URL of http or https")
        request = Request(url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            build_opener(_NoRedirect).open(request, timeout=POST_SECONDS).close()
        except HTTPError as error:
            error.close()
            raise OSError(f"it answered with {error.code}") from None

    # The timeout of urllib applies to each read, and a response may arrive in many.
    with anyio.fail_after(POST_SECONDS):
        await anyio.to_thread.run_sync(send, abandon_on_cancel=True)
