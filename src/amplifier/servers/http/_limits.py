"""How much the server takes on: sizes, numbers, times; and the reading of request bodies within them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import anyio
import attrs
import orjson
from starlette.requests import ClientDisconnect, Request

from ._problems import Problem

LONGEST_OUTPUT: Final = 20_000
"""Characters of a tool's output that clients get; the whole output is in the conversation."""


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if isinstance(value, bool) or not value > 0:
        raise ValueError(f"{attribute.name}: expected a number greater than 0, got {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of a server.

    Attributes:
        body_bytes: Of one request; more is answered with 413.
        sessions: Held open at once by the session API; more is answered with 429.
        turns: Running at once, on all routes; more is answered with 429.
        body_seconds: For receiving the body of a request.
        send_seconds: For a client to take one event; a slower one is treated as one that has left.
        idle_seconds: After which a session of the session API that no one uses is closed.
        abandoned_seconds: After which a turn of the session API is stopped when its last watcher has left.
        shutdown_seconds: For running turns to end when the server is stopped.
    """

    body_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=_positive)
    sessions: int = attrs.field(default=100, validator=_positive)
    turns: int = attrs.field(default=50, validator=_positive)
    body_seconds: float = attrs.field(default=30.0, validator=_positive)
    send_seconds: float = attrs.field(default=60.0, validator=_positive)
    idle_seconds: float = attrs.field(default=3600.0, validator=_positive)
    abandoned_seconds: float = attrs.field(default=30.0, validator=_positive)
    shutdown_seconds: float = attrs.field(default=10.0, validator=_positive)


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The body of a request: one JSON object."""
    # A form of another site can send text/plain without asking the browser for permission, but not this.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"content-type: expected application/json, got {kind!r:.80}", code="unsupported_media_type")
    too_large = Problem(413, f"the body is larger than {limits.body_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        with anyio.fail_after(limits.body_seconds):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > limits.body_bytes:
                        raise too_large
    except ClientDisconnect:
        raise Problem(400, "the client left before it had sent the body", code="client_left") from None
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {limits.body_seconds:g} s", code="body_too_slow") from None
    try:
        value = orjson.loads(bytes(body))
    except ValueError as error:
        raise Problem(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Problem(400, f"the body: expected a JSON object, got {type(value).__name__}", code="invalid_json")
    return value
