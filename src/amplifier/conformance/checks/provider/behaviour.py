"""Checks of providers: description, mounting and streams."""

from __future__ import annotations

import logging
from typing import Any

import anyio

from amplifier.conformance.checks.provider.answers import (
    PROVIDER,
    asking,
    check_events,
    complete,
    expect_unchanged,
    response_events,
    snapshot,
    usable,
    without_ids,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.target.mounted import OWNER, CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.process import audited, captured_logs
from amplifier.conformance.target.source import settings_in
from amplifier.conformance.target.use import is_secret, secret_variables, without_secrets
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
)

_STREAMED = (
    ("Hello.",),
    ("Repeat this sentence to its last word, for it has to be sent in several pieces.",),
    ("Hello.", "Hi.", "Go on."),
)
"""The conversation before a stream, by the user and the model in turn."""
_FLAGS = ("raw", "debug")
_CONNECTING = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "urllib.Request", "http.client.connect")


@check("P12", "P13", "P20", "P24", kind="structure", types=PROVIDER)
async def describes_itself(ctx: CheckContext) -> None:
    """Calls get_info while it watches for connections, and list_models with and without credentials."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        with audited(*_CONNECTING) as seen:
            outcome = await mounted.call(mounted.instance.get_info)
        if not outcome.returned or not isinstance(outcome.value, ProviderInfo):
            ctx.fault("P13", f"get_info {outcome}; expected a ProviderInfo", error=outcome.error)
        else:
            for what in seen[:1]:
                ctx.fault("P24", f"get_info tried to reach a service: {what}")
            defaults = outcome.value.defaults or {}
            for key in ("context_window", "max_output_tokens"):
                if not isinstance(defaults.get(key), int):
                    ctx.fault("P20", f"the defaults of get_info have {key} {defaults.get(key)!r}; expected a number")
        await _check_models(mounted, "")
    if ctx.has_violations:
        return
    with without_secrets(ctx.loaded):
        try:
            async with ctx.mount(config={}) as mounted:
                if usable(mounted):
                    await _check_models(mounted, " without credentials")
        except MountFailed:
            return


async def _check_models(mounted: MountedModule, how: str) -> None:
    outcome = await mounted.call(mounted.instance.list_models)
    models = outcome.value
    if outcome.kind == "raised":
        mounted.ctx.fault("P12", f"list_models{how} {outcome}; expected a list", error=outcome.error)
    elif outcome.returned and not (isinstance(models, list) and all(isinstance(each, ModelInfo) for each in models)):
        mounted.ctx.fault("P12", f"list_models{how} returned {str(models)[:120]}; expected a list of ModelInfo")


@check("P15", kind="structure", types=PROVIDER, without_instance=("P15",))
async def declines_politely(ctx: CheckContext) -> None:
    """Mounts it without settings and without keys in the environment; it should decline with a warning, not fail."""
    needs = [key for key in settings_in(ctx.loaded.target) if is_secret(key)]
    if not needs and not secret_variables(ctx.loaded):
        return
    try:
        with without_secrets(ctx.loaded), captured_logs(lambda record: record.levelno >= logging.WARNING) as records:
            async with ctx.mount(config={}) as mounted:
                own = [record for record in records if OWNER not in record.getMessage()]
                if mounted.instance is None and not own:
                    ctx.fault("P15", "without a key mount declined and logged no warning")
    except MountFailed as failed:
        what = f"without settings mount {failed.outcome}; expected a warning and None"
        ctx.fault("P15", what, error=failed.outcome.error)


@check("P18", kind="structure", types=PROVIDER)
async def can_be_closed(ctx: CheckContext) -> None:
    """Looks for a cleanup that can close a provider with a close method."""
    async with ctx.mount() as mounted:
        provider = mounted.instance
        closing = [name for name in ("aclose", "close") if callable(getattr(provider, name, None))]
        is_closed = mounted.is_structured or mounted.cleanup is not None or mounted.registered_cleanups
        if provider is not None and closing and not is_closed:
            ctx.fault("P18", f"the provider has {closing[0]}(), and mount returned no cleanup that could call it")


@check("P17", kind="behaviour", types=PROVIDER)
async def shows_what_it_sends(ctx: CheckContext) -> None:
    """Turns on a flag such as raw, if there is one, and compares the events with those without it."""
    flags = [key for key in settings_in(ctx.loaded.target) if any(word in key.lower().split("_") for word in _FLAGS)]
    if not flags:
        return
    quiet = await _events_of_a_call(ctx, dict.fromkeys(flags, False))
    loud = await _events_of_a_call(ctx, dict.fromkeys(flags, True))
    if quiet is None or loud is None:
        return
    for name in ("llm:request", "llm:response"):
        if name in loud and not loud[name] - quiet.get(name, set()):
            ctx.fault("P17", f"with {flags[0]}=True {name} holds nothing more than without it")
            return
    if "llm:request" not in loud:
        ctx.fault("P17", f"with {flags[0]}=True llm:request is not emitted")


async def _events_of_a_call(ctx: CheckContext, flags: dict[str, bool]) -> dict[str, set[str]] | None:
    """The keys of the payloads of one call's events; None if there was no answer."""
    try:
        async with ctx.mount(config={**ctx.loaded.config, **flags}) as mounted:
            if not usable(mounted) or not (await complete(mounted, asking("Hello."))).returned:
                return None
            found: dict[str, set[str]] = {}
            for name, payload in mounted.events.events:
                found.setdefault(name, set()).update(payload)
            return found
    except MountFailed:
        return None


@check("P11", "P21", "P23", kind="behaviour", types=PROVIDER)
async def streams_the_same(ctx: CheckContext) -> None:
    """Compares the last chunk of a stream with the response of complete, and the deltas with the whole."""
    for words in _STREAMED:
        async with ctx.mount() as mounted:
            if not usable(mounted) or not callable(getattr(mounted.instance, "stream", None)):
                return
            response = await _streamed_response(mounted, words)
        if response is None or ctx.faults:
            return
        async with ctx.mount() as mounted:  # who has the response may stop reading
            await mounted.call(_streamed, mounted.instance, _said(words), is_left=True)
            check_events(ctx, response, await response_events(mounted, 1))
        whole = [await _whole(ctx, words), await _whole(ctx, words)]
        if None not in whole and whole[0] == whole[1] and without_ids(response) != whole[0]:
            ctx.fault("P21", "the response of the last chunk is not what complete returns for the same request")


def _said(words: tuple[str, ...]) -> ChatRequest:
    request = asking(words[-1])
    request.messages = [
        Message(role="assistant" if number % 2 else "user", content=text) for number, text in enumerate(words)
    ]
    return request


async def _streamed_response(mounted: MountedModule, words: tuple[str, ...]) -> ChatResponse | None:
    """The response at the end of a stream, whose chunks are checked; None if there is none to compare with."""
    ctx, request = mounted.ctx, _said(words)
    before = snapshot(request)
    outcome = await mounted.call(_streamed, mounted.instance, request)
    if not outcome.returned or outcome.value is None:
        return None  # another kind of stream, or none for this request
    chunks: list[StreamChunk] = outcome.value
    expect_unchanged(ctx, request, before)
    last = chunks[-1] if chunks else None
    if last is None or not isinstance(last.response, ChatResponse):
        ctx.fault("P21", "the last chunk of a stream has no response")
        return None
    if any(chunk.response is not None for chunk in chunks[:-1]):
        ctx.fault("P21", "a chunk before the last one has a response")
    _check_deltas(ctx, chunks, last.response)
    check_events(ctx, last.response, await response_events(mounted, 1))
    return last.response


async def _streamed(provider: Any, request: ChatRequest, *, is_left: bool = False) -> list[StreamChunk] | None:
    """The chunks of a stream, read to its end or left at the response; None for another kind of stream."""
    manager = provider.stream(request)
    if not hasattr(type(manager), "__aenter__"):
        return None
    chunks = []
    async with manager as stream:
        async for chunk in stream:
            if not isinstance(chunk, StreamChunk):
                return None
            chunks.append(chunk)
            if chunk.response is not None and is_left:
                break
    return chunks


@check("P22", kind="behaviour", types=PROVIDER)
async def streams_without_a_block(ctx: CheckContext) -> None:
    """Reads a stream with async for alone, to its end, others only to their first chunks, and one until its reader is cancelled."""
    async with ctx.mount() as mounted:
        if not usable(mounted) or not callable(getattr(mounted.instance, "stream", None)):
            return
        blocked = await mounted.call(_streamed, mounted.instance, asking("Hello."))
        if not blocked.returned or not blocked.value:
            return  # another kind of stream, or none for this request
        bare = await mounted.call(_read_bare, mounted.instance, asking("Hello."))
        if not bare.returned:
            ctx.fault("P22", f"reading a stream with async for alone {bare}", error=bare.error)
        elif bare.value is None:
            ctx.fault("P22", "what stream returns is no async iterator: it lacks __aiter__ or __anext__")
        elif [chunk.kind for chunk in bare.value[-1:]] != [chunk.kind for chunk in blocked.value[-1:]]:
            ctx.fault("P22", "read with async for alone a stream ends with another kind of chunk than inside its block")
        if ctx.faults:
            return
        early = await mounted.call(_leave_early, mounted.instance, asking("Hello."))
        again = await mounted.call(_streamed, mounted.instance, asking("Hello."))
        if early.kind == "late" or (early.returned and again.kind == "late"):
            ctx.fault(
                "P22", f"of {_EARLY} streams that were left early, in their blocks, or after them, one never ends"
            )
            return
        left = await mounted.call(_cancelled_reader, mounted.instance, asking("Hello."))
        if left.returned and left.value is not None:
            ctx.fault("P22", f"after its reader was cancelled a stream goes on: {left.value}")


async def _read_bare(provider: Any, request: ChatRequest) -> list[StreamChunk] | None:
    stream = provider.stream(request)
    if not hasattr(type(stream), "__aiter__") or not hasattr(type(stream), "__anext__"):
        return None
    return [chunk async for chunk in stream]


_EARLY = 20
"""How many streams are left before their ends: each may keep a slot."""


async def _leave_early(provider: Any, request: ChatRequest) -> None:
    for _ in range(_EARLY):
        async with provider.stream(request) as stream:
            await anext(aiter(stream), None)


async def _cancelled_reader(provider: Any, request: ChatRequest) -> str | None:
    """What a stream yields after its reader was cancelled; None if it has ended, or never waited."""
    stream = provider.stream(request)
    while True:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anext(stream)
            except StopAsyncIteration:
                return None
        if scope.cancelled_caught:
            break
    try:
        return repr(await anext(stream))[:200]
    except StopAsyncIteration:
        return None


def _check_deltas(ctx: CheckContext, chunks: list[StreamChunk], response: ChatResponse) -> None:
    pieces: dict[int, str] = {}
    for chunk in chunks:
        if chunk.kind == "block_delta" and chunk.text:
            pieces[chunk.index] = pieces.get(chunk.index, "") + chunk.text
    for index, text in pieces.items():
        whole = getattr(response.content[index], "text", None) if index < len(response.content) else None
        if whole is not None and whole != text:
            ctx.fault("P21", f"the pieces of block {index} make {text[:80]!r}; the response has {whole[:80]!r}")
            return


async def _whole(ctx: CheckContext, words: tuple[str, ...]) -> str | None:
    async with ctx.mount() as mounted:
        outcome = await complete(mounted, _said(words))
        return without_ids(outcome.value) if isinstance(outcome.value, ChatResponse) else None
