"""provider-replay: records the answers of a session's providers in a file, and replays them."""

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

from amplifier._internal.json import JSON
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
    """The configuration of provider-replay. Its reference page explains the options."""

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
    """The use of a cassette by one session.

    Attributes:
        options: The configuration.
        scrubber: Removes secrets from recordings.
        cassette: The cassette, which other sessions may share.
        place: The place of its requests. See `Exchange`.
        uses: Numbers of equal requests in the session and its children, by digest.
        parent: The session that writes the file for a child session, or None.
        providers: The providers that were mounted for the session.
    """

    options: ReplayOptions
    scrubber: Scrubber
    cassette: Cassette = attrs.field(init=False)
    place: str = ""
    uses: Counter[str] = attrs.Factory(Counter)
    parent: _Session | None = None
    providers: dict[str, RecordingProvider | ReplayProvider] = attrs.Factory(dict)

    def find(self, provider: str, request: ChatRequest) -> tuple[Exchange, Exchange | None, int]:
        """Return a new exchange for a request, its recording or None, and the number of uses."""
        canonical = canonical_request(request, self.scrubber, self.options.ignore)
        exchange = Exchange(place=self.place, provider=provider, request=canonical)
        key = digest([self.place, provider, canonical])
        self.uses[key] += 1
        uses = self.uses[key]
        matches = [recorded for recorded in self.cassette.recorded or () if recorded == exchange]
        return exchange, matches[uses - 1] if uses <= len(matches) else None, uses


# The open sessions by id. A child session looks up its parent's cassette here, because its plan
# contains only the path.
_sessions: WeakValueDictionary[str, _Session] = WeakValueDictionary()


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the recorded providers. `on_session_ready` wraps the providers of other modules.

    Returns:
        The cleanup, which writes the file if something was recorded. None if the configuration has
        no ``cassette``.

    Raises:
        PlanError: The configuration is invalid, or the file is missing or isn't a cassette.
        re.error: A pattern in ``ignore`` isn't a regular expression.
    """
    options = read_options(ReplayOptions, _MODULE, config)
    for pattern in options.ignore:
        re.compile(pattern)
    if options.cassette is None:
        _logger.warning(
            "%s is not mounted: set `cassette` in its config to the file with the recordings",
            _MODULE,
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
    """Wrap the providers of other modules, which are all mounted by now.

    The wrappers record the providers' answers, or replace them with recordings.
    """
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
        # mount() would report that two modules claim the same name.
        mounted[name] = session.providers[name]


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


async def _in_thread(work: Callable[[], None], operation: str) -> None:
    await Workers(threads=1, timeout=_FILE_SECONDS).run(lambda _stop: work(), label=operation)


# ── providers ────────────────────────────────────────────────────────────────────────────────────


class ReplayProvider(LocalAnswerProvider):
    """Answers from the recordings of one provider, under its name.

    Args:
        coordinator: Receives the events.
        name: The name of the recorded provider.
        session: The session.
        recording: The recording to use for every answer. None to look one up for each request.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        session: _Session,
        recording: Exchange | None = None,
    ) -> None:
        super().__init__(coordinator)
        self._name = name
        self._session = session
        self._recording = recording
        self._model = str(self.get_info().defaults.get("model") or name)

    def get_info(self) -> ProviderInfo:
        """Return the recorded provider's description, so that contexts compute the same budget."""
        recorded = self._session.cassette.providers.get(self._name)
        return from_dict(ProviderInfo, recorded or {"id": self._name, "display_name": self._name})

    async def _answer(self, request: ChatRequest) -> Answer:
        recording = self._recording
        if recording is None:
            exchange, recording, uses = self._session.find(self._name, request)
            if recording is None:
                raise self._session.cassette.mismatch(exchange, uses)
        return recording.replayed(self._session.scrubber)


class RecordingProvider:
    """Calls another provider and records its answers. In mode ``new``, replays earlier recordings.

    All other members are those of the other provider. ``stream`` exists only if it does there.
    """

    def __init__(self, coordinator: Coordinator, name: str, inner: Any, session: _Session) -> None:
        self.inner = inner
        self._coordinator = coordinator
        self._mounted_as = name
        self._session = session
        self._streams = AnswerStreams(coordinator)
        # Loops check whether the member exists.
        if hasattr(inner, "stream"):
            self.stream: Callable[..., AnswerStream] = self._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Call the other provider and record its response.

        Raises:
            LLMError: The other provider failed. The error is recorded as well.
        """
        exchange, replay = self._begin(request)
        if replay is not None:
            return await replay.complete(request)
        with self._recorded_error(exchange, ()):
            response: ChatResponse = await self.inner.complete(request, **kwargs)
        # The loop rejects anything other than a response.
        if isinstance(response, ChatResponse):
            exchange.finish(response, (), self._session.scrubber)
        return response

    async def aclose(self) -> None:
        """Close unfinished streams. A second call does nothing."""
        await self._streams.aclose()

    def _stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Stream the answer and record its chunks, unless the reader stops early.

        Raises:
            LLMError: The other provider failed. This is raised while the chunks are read.
        """
        return self._streams.stream(self._opened(request, kwargs))

    def _begin(self, request: ChatRequest) -> tuple[Exchange, ReplayProvider | None]:
        exchange, recording, _ = self._session.find(self._mounted_as, request)
        if recording is not None:
            replay = ReplayProvider(self._coordinator, self._mounted_as, self._session, recording)
            return recording, replay
        self._session.cassette.new.append(exchange)
        return exchange, None

    @asynccontextmanager
    async def _opened(
        self, request: ChatRequest, kwargs: dict[str, JSON]
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
