"""provider-replay: records the answers of a session's providers in a file, and gives them again without a network.

`ReplayProvider` answers from the recordings, `RecordingProvider` asks another provider and records; `_cassette` has the file.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import attrs

from amplifier.contracts import Coordinator, current_call
from amplifier.errors import LLMError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ProviderInfo,
    StreamChunk,
    from_dict,
    to_dict,
)

from .._shared.configuration import (
    choice,
    file_name,
    mapping_each,
    option,
    read_options,
    text,
    texts,
)
from .._shared.worker_threads import Workers
from ._cassette import Cassette, Exchange, Scrubber, canonical_request, digest, join, leave
from ._local_answers import Answer, LocalAnswerProvider
from ._streams import AnswerStream, AnswerStreams

__all__ = ["RecordingProvider", "ReplayOptions", "ReplayProvider", "mount", "on_session_ready"]

__amplifier_module_type__ = "provider"

_logger = logging.getLogger("amplifier.modules.provider-replay")

_MODULE = "provider-replay"
_FILE_SECONDS = 10.0
_INFO = ("id", "display_name", "capabilities", "defaults")


# ── configuration ────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class ReplayOptions:
    """The configuration of provider-replay; its reference page explains the keys."""

    cassette: Path | None = option(file_name, default=None, restricts=True)
    mode: str = option(choice("none", "once", "new"), default="none", restricts=True)
    placeholders: Mapping[str, str] = option(
        mapping_each("an object of texts", text), default=attrs.Factory(dict)
    )
    ignore: tuple[str, ...] = option(texts(), default=())
    run: str | None = option(text, default=None)


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


@attrs.define(kw_only=True, eq=False, weakref_slot=True)
class _Session:
    """What one session does with the cassette.

    Attributes:
        place: See `Exchange`.
        uses: How often each request was made, in the session and its children.
        parent: For child sessions, which leave writing the file to it.
        providers: What is mounted for the session.
    """

    options: ReplayOptions
    scrubber: Scrubber
    cassette: Cassette = attrs.field(init=False)
    place: str = ""
    uses: Counter[str] = attrs.Factory(Counter)
    parent: _Session | None = None
    providers: dict[str, RecordingProvider | ReplayProvider] = attrs.Factory(dict)

    def find(self, provider: str, request: ChatRequest) -> tuple[Exchange, Exchange | None, int]:
        """A request as it is recorded, its recording, if there is one, and how often it was made."""
        canonical = canonical_request(request, self.scrubber, self.options.ignore)
        asked = Exchange(place=self.place, provider=provider, request=canonical)
        key = digest([self.place, provider, canonical])
        self.uses[key] += 1
        uses = self.uses[key]
        found = [exchange for exchange in self.cassette.recorded or () if exchange == asked]
        return asked, found[uses - 1] if uses <= len(found) else None, uses


_sessions: WeakValueDictionary[str, _Session] = WeakValueDictionary()
"""The open sessions by id: a child session finds the cassette of its parent, which its plan can only name."""


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the recorded providers; `on_session_ready` wraps those that other modules mount.

    Returns:
        The cleanup, which writes the file if something was recorded; None without a ``cassette`` in the configuration.

    Raises:
        PlanError: The configuration is wrong, or the file is missing or no cassette.
        re.error: What should be a regular expression is none.
    """
    options = read_options(ReplayOptions, _MODULE, config)
    for pattern in options.ignore:
        re.compile(pattern)
    if options.cassette is None:
        _logger.warning(
            "%s is not mounted: its config has no `cassette`, the file with the recordings", _MODULE
        )
        return None
    session = await _open(coordinator, options, options.cassette.absolute())
    cassette = session.cassette
    if not cassette.records:
        for name in cassette.providers:
            if name not in coordinator.get("providers"):
                session.providers[name] = ReplayProvider(coordinator, name, session)
                await coordinator.mount("providers", session.providers[name], name=name)
    coordinator.session_state[_MODULE] = session
    _sessions[coordinator.session_id] = session

    async def close() -> None:
        mounted = coordinator.get("providers")
        for name, provider in session.providers.items():
            await provider.aclose()
            if mounted.get(name) is provider and isinstance(provider, RecordingProvider):
                mounted[name] = provider.inner
        session.providers.clear()
        if session.parent is None:
            try:
                await _in_thread(cassette.save, f"writing {cassette.path}")
            finally:
                leave(session, cassette)

    return close


async def on_session_ready(coordinator: Coordinator) -> None:
    """Wrap the providers of the other modules, which are all mounted now: they record, or they may not be asked at all."""
    session: _Session | None = coordinator.session_state.get(_MODULE)
    if session is None:
        return
    cassette, mounted = session.cassette, coordinator.get("providers")
    for name, provider in list(mounted.items()):
        if name in session.providers:
            continue
        if cassette.records:
            info = to_dict(provider.get_info())
            cassette.providers[name] = session.scrubber.scrub(
                {key: info[key] for key in _INFO if key in info}
            )
            session.providers[name] = RecordingProvider(coordinator, name, provider, session)
        else:
            session.providers[name] = ReplayProvider(coordinator, name, session)
        mounted[name] = session.providers[
            name
        ]  # not mount(), which would take it for two modules that claim one name


async def _open(coordinator: Coordinator, options: ReplayOptions, path: Path) -> _Session:
    parent = _sessions.get(coordinator.parent_id or "")
    if parent is not None and parent.cassette.path == path:
        call = current_call()
        is_in_call = call is not None and call.session_id == coordinator.parent_id
        name = parent.scrubber.scrub(call.call_id) if call is not None and is_in_call else "fork"
        child = attrs.evolve(parent, place=f"{parent.place}/{name}", parent=parent, providers={})
        child.cassette = parent.cassette
        return child
    session = _Session(options=options, scrubber=Scrubber(options.placeholders, coordinator.config))
    session.cassette, number = join(session, path, options.mode, options.run)
    try:
        await _in_thread(session.cassette.load, f"reading {path}")
    except BaseException:
        leave(session, session.cassette)
        raise
    session.place = session.cassette.place(number)
    return session


async def _in_thread(work: Callable[[], None], what: str) -> None:
    await Workers(threads=1, timeout=_FILE_SECONDS).run(lambda _stop: work(), what=what)


# ── providers ────────────────────────────────────────────────────────────────────────────────────


class ReplayProvider(LocalAnswerProvider):
    """Answers from the recordings of one provider, under its name; with one recording that was found already, or that of the request."""

    def __init__(
        self, coordinator: Coordinator, name: str, session: _Session, found: Exchange | None = None
    ) -> None:
        super().__init__(coordinator)
        self._name = name
        self._session = session
        self._found = found
        self._model = str(self.get_info().defaults.get("model") or name)

    def get_info(self) -> ProviderInfo:
        """The recorded provider's description, so that contexts compute the same budget."""
        recorded = self._session.cassette.providers.get(self._name)
        return from_dict(ProviderInfo, recorded or {"id": self._name, "display_name": self._name})

    async def _answer(self, request: ChatRequest) -> Answer:
        found = self._found
        if found is None:
            asked, found, uses = self._session.find(self._name, request)
            if found is None:
                raise self._session.cassette.mismatch(asked, uses)
        return found.replayed(self._session.scrubber)


class RecordingProvider:
    """Asks another provider and records what comes back; in mode ``new`` it replays what is recorded already.

    Every other member is that of the other provider; it has ``stream`` if the other one has it.
    """

    def __init__(self, coordinator: Coordinator, name: str, inner: Any, session: _Session) -> None:
        self.inner = inner
        self._coordinator = coordinator
        self._mounted_as = name
        self._session = session
        self._streams = AnswerStreams(coordinator)
        if hasattr(inner, "stream"):  # loops ask for the member
            self.stream: Callable[..., AnswerStream] = self._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Ask and record.

        Raises:
            LLMError: What the other provider raised, which is recorded as well.
        """
        exchange, replay = self._begin(request)
        if replay is not None:
            return await replay.complete(request)
        with self._recorded_error(exchange, ()):
            response: ChatResponse = await self.inner.complete(request, **kwargs)
        if isinstance(response, ChatResponse):  # anything else is refused by the loop
            exchange.finish(response, (), self._session.scrubber)
        return response

    async def aclose(self) -> None:
        """Close unfinished streams; a second call does nothing."""
        await self._streams.aclose()

    def _stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Stream the answer and record its chunks; an answer that is left before its end is not recorded.

        Raises:
            LLMError: What the other provider raised, while the chunks are read.
        """
        return self._streams.stream(self._opened(request, kwargs))

    def _begin(self, request: ChatRequest) -> tuple[Exchange, ReplayProvider | None]:
        asked, found, _ = self._session.find(self._mounted_as, request)
        if found is not None:
            return found, ReplayProvider(self._coordinator, self._mounted_as, self._session, found)
        self._session.cassette.new.append(asked)
        return asked, None

    @asynccontextmanager
    async def _opened(
        self, request: ChatRequest, kwargs: dict[str, Any]
    ) -> AsyncGenerator[AsyncIterator[StreamChunk], None]:
        exchange, replay = self._begin(request)
        async with AsyncExitStack() as stack:
            if replay is not None:
                yield await stack.enter_async_context(replay.stream(request))
                return
            with self._recorded_error(exchange, ()):
                chunks = await stack.enter_async_context(self.inner.stream(request, **kwargs))
            yield await stack.enter_async_context(aclosing(self._recorded(chunks, exchange)))

    async def _recorded(
        self, chunks: AsyncIterator[StreamChunk], exchange: Exchange
    ) -> AsyncGenerator[StreamChunk, None]:
        seen: list[StreamChunk] = []
        with self._recorded_error(exchange, seen):
            async for chunk in chunks:
                if chunk.response is not None:
                    exchange.finish(chunk.response, seen, self._session.scrubber)
                else:
                    seen.append(chunk)
                yield chunk

    @contextmanager
    def _recorded_error(self, exchange: Exchange, seen: Sequence[StreamChunk]) -> Iterator[None]:
        try:
            yield
        except LLMError as error:
            exchange.finish(error, seen, self._session.scrubber)
            raise
