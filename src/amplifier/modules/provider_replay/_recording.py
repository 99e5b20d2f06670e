"""What one session does with the cassette: its place, and how its requests and answers are written."""

from __future__ import annotations

from typing import Any

import attrs

import amplifier.errors as error_classes
from amplifier.errors import LLMError, PlanError
from amplifier.models import ChatRequest, ChatResponse, StreamChunk, from_dict

from .._local_answers import Answer
from ._cassette import Cassette, Exchange
from ._options import ReplayOptions
from ._request import canonical_request
from ._scrubbing import Scrubber
from ._sharing import Seat

_NO_WAIT = 1e-9
"""The factor on the delay before a retry; a loop ignores 0."""


@attrs.frozen(kw_only=True, eq=False, weakref_slot=True)
class SessionRecording:
    """The part of one session.

    Attributes:
        place: See `Exchange`.
        seat: The session's part in the run; None for child sessions, which leave writing the file to their parent.
    """

    cassette: Cassette
    options: ReplayOptions
    scrubber: Scrubber
    place: str
    seat: Seat | None

    def find(self, provider: str, request: ChatRequest) -> Exchange | None:
        """The recording for a request, if there is one."""
        return self.cassette.take(self.place, provider, self._canonical(request))

    def require(self, provider: str, request: ChatRequest) -> Exchange:
        """The recording for a request.

        Raises:
            ReplayMismatchError: There is none.
        """
        canonical = self._canonical(request)
        exchange = self.cassette.take(self.place, provider, canonical)
        if exchange is None:
            raise self.cassette.mismatch(self.place, provider, canonical)
        return exchange

    def begin(self, provider: str, request: ChatRequest) -> Exchange:
        """A new recording, to be completed."""
        return self.cassette.begin(self.place, provider, self._canonical(request))

    def answer(self, exchange: Exchange) -> Answer:
        """What to replay.

        Raises:
            LLMError: The recorded error, if nothing came before it.
        """
        chunks = None
        if exchange.chunks is not None:
            chunks = [from_dict(StreamChunk, self.scrubber.restore(chunk)) for chunk in exchange.chunks]
        if exchange.error is None:
            return Answer(response=from_dict(ChatResponse, self.scrubber.restore(exchange.response)), chunks=chunks)
        error = self._error(self.scrubber.restore(exchange.error))
        if not chunks:
            raise error
        return Answer(response=ChatResponse(content=[]), chunks=chunks, error=error)

    def _canonical(self, request: ChatRequest) -> dict[str, Any]:
        return canonical_request(request, self.scrubber, self.options.ignore)

    def _error(self, recorded: dict[str, Any]) -> LLMError:
        fields = {key: value for key, value in recorded.items() if key not in ("type", "message")}
        if not self.options.waits:
            fields.pop("retry_after", None)
            if "delay_multiplier" in fields:
                fields["delay_multiplier"] = _NO_WAIT
        kind = getattr(error_classes, recorded["type"], None)
        if not (isinstance(kind, type) and issubclass(kind, LLMError)):
            problem = f"{self.cassette.path} has an error {recorded['type']!r}; expected a class of amplifier.errors"
            raise PlanError([("$.cassette", problem)])
        return kind(recorded.get("message", ""), **fields)
