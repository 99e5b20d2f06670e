"""The recordings of sessions and their children, and which of them answers a request.

A recording is found by its place (the session, and for a child session the tool calls that led to it), the provider, the
request, and how often the same request was made there before. The place keeps parallel child sessions apart whose
requests are equal: which of them asks first is up to the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

import attrs

from amplifier.errors import InvalidToolCallError, LLMError, ReplayMismatchError
from amplifier.models import ChatResponse, StreamChunk, to_dict

from ._difference import first_difference, similarity
from ._request import digest
from ._scrubbing import Scrubber

ERROR_FIELDS = ("provider", "model", "status_code", "retryable", "retry_after", "delay_multiplier")
TOOL_CALL_FIELDS = ("tool_name", "raw_arguments")


@attrs.define(kw_only=True, eq=False)
class Exchange:
    """A request and what came back; everything in it may be written.

    Attributes:
        place: Where it was made, such as ``main`` or ``main/call_1``.
        chunks: The pieces of a stream without the response; None if the answer was not streamed.
        response: None for an error or an unfinished exchange.
        error: The error's class name and fields; None for a response or an unfinished exchange.
    """

    place: str
    provider: str
    request: dict[str, Any]
    chunks: list[dict[str, Any]] | None = None
    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there is something to replay; an answer that was cut off is none."""
        return self.response is not None or self.error is not None

    def finish(self, response: ChatResponse, chunks: Iterable[StreamChunk] | None, scrubber: Scrubber) -> None:
        """Note the answer."""
        self.response = scrubber.scrub(to_dict(response))
        self.chunks = None if chunks is None else _scrubbed_chunks(chunks, scrubber)

    def fail(self, error: LLMError, chunks: Iterable[StreamChunk] | None, scrubber: Scrubber) -> None:
        """Note the error, and the pieces that came before it."""
        # A class that another package derived from ours is not known when the recording is replayed.
        kind = next(one for one in type(error).__mro__ if one.__module__ == LLMError.__module__)
        names = (*ERROR_FIELDS, *TOOL_CALL_FIELDS) if isinstance(error, InvalidToolCallError) else ERROR_FIELDS
        fields = {name: getattr(error, name) for name in names}
        about = {"type": kind.__name__, "message": str(error), **fields}
        self.error = scrubber.scrub({key: value for key, value in about.items() if value is not None})
        self.chunks = None if chunks is None else _scrubbed_chunks(chunks, scrubber)


def _scrubbed_chunks(chunks: Iterable[StreamChunk], scrubber: Scrubber) -> list[dict[str, Any]]:
    written = [{key: value for key, value in to_dict(chunk).items() if value is not None} for chunk in chunks]
    pieces: dict[int, list[str]] = {}
    for chunk in written:
        if chunk["kind"] == "block_delta":
            pieces.setdefault(chunk.get("index", 0), []).append(chunk.get("text", ""))
    waiting = {index: scrubber.scrub_pieces(texts) for index, texts in pieces.items()}
    kept: list[dict[str, Any]] = []
    for chunk in written:
        if chunk["kind"] != "block_delta":
            kept.append(scrubber.scrub(chunk))
        elif waiting[chunk.get("index", 0)]:  # fewer than there were, if a secret was cut into pieces
            kept.append({**chunk, "text": waiting[chunk.get("index", 0)].pop(0)})
    return kept


class Cassette:
    """The recordings of one session and its children, or of several that share the file.

    Args:
        path: The file.
        mode: See `ReplayOptions`.
        recorded: What the file holds; None if there is no file.
        providers: The descriptions of the recorded providers, by the names they were mounted under.
    """

    def __init__(
        self,
        path: Path,
        mode: str,
        recorded: Iterable[Exchange] | None,
        providers: dict[str, dict[str, Any]],
    ) -> None:
        self.path = path
        self.writing = Lock()  # sessions that share it write it whenever one of them closes
        self.providers = providers
        self.records = mode == "new" or (mode == "once" and recorded is None)
        self._mode = mode
        self._recorded = list(recorded or ())
        self._new: list[Exchange] = []
        self._by_key: dict[tuple[str, str, str], list[Exchange]] = {}
        for exchange in self._recorded:
            self._by_key.setdefault(_key(exchange.place, exchange.provider, exchange.request), []).append(exchange)
        self._uses: Counter[tuple[str, str, str]] = Counter()

    def __repr__(self) -> str:
        return f"<Cassette {str(self.path)!r}, mode {self._mode}: {len(self._recorded)} recorded, {len(self._new)} new>"

    @property
    def main_places(self) -> set[str]:
        """The places of the sessions that the file has, without their children."""
        return {exchange.place.partition("/")[0] for exchange in self._recorded}

    @property
    def is_changed(self) -> bool:
        """Whether there is something that the file does not have."""
        return any(exchange.is_complete for exchange in self._new)

    @property
    def exchanges(self) -> list[Exchange]:
        """What belongs into the file, ordered by place, so that two recordings of one run have the same order."""
        complete = [exchange for exchange in (*self._recorded, *self._new) if exchange.is_complete]
        return sorted(complete, key=lambda exchange: exchange.place)

    def take(self, place: str, provider: str, request: dict[str, Any]) -> Exchange | None:
        """The recording for the next use of a request; None if there is none."""
        key = _key(place, provider, request)
        self._uses[key] += 1
        found = self._by_key.get(key, [])
        return found[self._uses[key] - 1] if self._uses[key] <= len(found) else None

    def begin(self, place: str, provider: str, request: dict[str, Any]) -> Exchange:
        """A new recording, to be completed."""
        exchange = Exchange(place=place, provider=provider, request=request)
        self._new.append(exchange)
        return exchange

    def mismatch(self, place: str, provider: str, request: dict[str, Any]) -> ReplayMismatchError:
        """Explain why there is no recording for a request that was just made."""
        where = f"{self.path.name} has no recording for this request of {place} to provider {provider!r}"
        advice = "correct what changed, or record again: remove the file and use mode 'once' (`--record` on the command line)"
        uses = self._uses[_key(place, provider, request)]
        if uses > 1:
            text = f"{where}: it was made {uses} times, and recorded {'once' if uses == 2 else f'{uses - 1} times'}"
            return ReplayMismatchError(f"{text}; {advice}", provider=provider)
        candidates = [exchange for exchange in self._recorded if exchange.provider == provider]
        if not candidates:
            known = ", ".join(repr(name) for name in self.providers) or "none"
            return ReplayMismatchError(f"{where}; recorded providers: {known}; {advice}", provider=provider)
        nearest = max(candidates, key=lambda exchange: (exchange.place == place, similarity(exchange.request, request)))
        difference = first_difference(nearest.request, request)
        number = self.exchanges.index(nearest) + 1
        if difference is None:
            text = f"{where}; the same request is recorded for {nearest.place} (request {number})"
            return ReplayMismatchError(f"{text}; {advice}", provider=provider)
        error = ReplayMismatchError(
            f"{where}; the nearest is request {number} (of {nearest.place}), which differs at {difference.path}: "
            f"expected {difference.expected}, found {difference.found}; {advice}",
            provider=provider,
        )
        error.path, error.expected, error.found = difference.path, difference.expected, difference.found
        return error


def _key(place: str, provider: str, request: dict[str, Any]) -> tuple[str, str, str]:
    return place, provider, digest(request)
