"""Calls back the one who started a turn when it has ended: a POST of its status as JSON, at least once."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import anyio
import anyio.to_thread
import attrs
import orjson

from ._values import TurnStatus

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
        if urlsplit(url).scheme not in ("http", "https"):  # `start` has checked it, others who write there have not
            raise ValueError("expected a URL of http or https")
        request = Request(url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            build_opener(_NoRedirect).open(request, timeout=POST_SECONDS).close()
        except HTTPError as error:
            error.close()
            raise OSError(f"it answered with {error.code}") from None

    with anyio.fail_after(POST_SECONDS):  # that of urllib is for each step, and an answer may come in many
        await anyio.to_thread.run_sync(send, abandon_on_cancel=True)
