"""Check providers: members, responses, usage, calls, errors, mounting, streams and requests."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.fake_server import REDACTED, SIGNATURE, THOUGHT
from amplifier.conformance.inputs.server_process import is_served, received_requests, with_scenario
from amplifier.conformance.oracles.calls import check_method, with_instance
from amplifier.conformance.oracles.provider_rules import (
    asking,
    call_tuples,
    calls_of,
    continued,
    problem_with,
    request_from,
    snapshot,
    tool_specs,
    without_ids,
)
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.mounted import OWNER, CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.process import audited, captured_logs
from amplifier.conformance.target.source import settings_in, texts_in
from amplifier.conformance.target.use import is_secret, secret_variables, without_secrets
from amplifier.contracts import Provider
from amplifier.errors import (
    AbortError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    ProviderUnavailableError,
    RateLimitError,
)
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
    from_dict,
    to_dict,
)
from amplifier.testing import EventRecorder

_PROVIDER = ("provider",)
_OTHER_REASONS = (
    AbortError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    LLMTimeoutError,
    ProviderUnavailableError,
    RateLimitError,
)
"""Errors with other causes than the content of a request."""
_EVENT_SECONDS = 0.2
_USAGE_KEYS = ("input_tokens", "output_tokens")
_CACHE_KEYS = ("cache_read_tokens", "cache_write_tokens")


@asynccontextmanager
async def with_provider(ctx: CheckContext, **options: Any) -> AsyncIterator[MountedModule | None]:
    """Provide the mounted provider, or None if there is none that can be called."""
    async with ctx.mount(**options) as mounted:
        yield mounted if isinstance(mounted.instance, Provider) else None


@asynccontextmanager
async def with_stream(ctx: CheckContext, **options: Any) -> AsyncIterator[MountedModule | None]:
    """Provide the mounted provider, or None if it has no stream."""
    async with with_provider(ctx, **options) as mounted:
        yield (
            None
            if mounted is None or not callable(getattr(mounted.instance, "stream", None))
            else mounted
        )


async def complete(mounted: MountedModule, request: ChatRequest, **options: Any) -> Outcome:
    """Call complete, and report a response that violates a clause on its own."""
    outcome = await mounted.call(mounted.instance.complete, request, **options)
    problem = problem_with(outcome.value) if outcome.returned else None
    if problem is not None and all(fault.clause != problem[0] for fault in mounted.ctx.faults):
        mounted.ctx.fault(*problem)
    return outcome


async def complete_alone(
    ctx: CheckContext, request: ChatRequest, config: dict[str, Any] | None = None
) -> Outcome:
    """Send a request to a fresh provider. The outcome is late if there is no provider to call."""
    async with with_provider(ctx, config=config) as mounted:
        return Outcome(kind="late") if mounted is None else await complete(mounted, request)


async def send(mounted: MountedModule, request: ChatRequest, **options: Any) -> Outcome:
    """Call complete, and report a changed request or a response that violates a clause."""
    before = snapshot(request)
    outcome = await complete(mounted, request, **options)
    expect_unchanged(mounted.ctx, request, before)
    if outcome.returned and problem_with(outcome.value) is None:
        check_calls(mounted, outcome.value)
    return outcome


@check("P1", kind="structure", types=_PROVIDER, on=with_instance)
async def has_five_members(mounted: MountedModule) -> None:
    """Read the name and call each of the four methods, two of which have to be async."""
    own_name: Any = getattr(mounted.instance, "name", None)
    if not isinstance(own_name, str) or not own_name:
        mounted.ctx.fault("P1", f"the provider's name is {own_name!r}; expected a text")
    await check_method(mounted, "P1", "get_info", is_async=False)
    await check_method(mounted, "P1", "list_models")
    await check_method(mounted, "P1", "complete", asking("Hello."))
    await check_method(mounted, "P1", "parse_tool_calls", _answer([], "call"), is_async=False)


_OF_RESPONSES = ("P3", "P4", "P5", "P6", "P7", "P8", "P9", "P14", "P23")
"""The clauses about responses, which cannot be decided if a provider never answers."""


@check(
    "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P19", "P23",
    kind="behaviour", types=_PROVIDER, inputs="provider_requests", needs_success=_OF_RESPONSES,
)  # fmt: skip
async def takes_every_request(ctx: CheckContext) -> None:
    """Send requests with every role and block type, then check the requests and responses."""
    async with with_provider(ctx) as mounted:
        if mounted is None:
            return
        request = request_from(ctx.case)
        outcome = await send(mounted, request)
        _check_echo(ctx, request, outcome.value)
        if isinstance(outcome.value, ChatResponse) and not ctx.faults:
            check_events(ctx, outcome.value, await response_events(mounted, 1))
    is_refused = outcome.kind == "raised" and not isinstance(outcome.error, _OTHER_REASONS)
    if is_refused and await _answers_plainly(ctx):
        ctx.fault("P7", f"complete {outcome}; a plain request is answered", error=outcome.error)


async def _answers_plainly(ctx: CheckContext) -> bool:
    """Return whether a fresh provider answers an ordinary first request."""
    return (await complete_alone(ctx, asking("Hello."))).returned


def expect_unchanged(ctx: CheckContext, request: ChatRequest, before: Any) -> None:
    """Report a changed request."""
    after = snapshot(request)
    if after != before:
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        ctx.fault("P8", f"complete changed the request: {', '.join(changed)} is different now")


def check_calls(mounted: MountedModule, response: ChatResponse) -> None:
    """Report a wrong result of parse_tool_calls for a response."""
    parsed, expected = _parsed(mounted, response), call_tuples(calls_of(response))
    if parsed != expected:
        what = f"parse_tool_calls gave {parsed!r} for its own response with the calls {expected!r}"
        mounted.ctx.fault("P10", what)


def _parsed(mounted: MountedModule, response: ChatResponse) -> Any:
    try:
        calls = mounted.instance.parse_tool_calls(response)
    # This foreign code is not async, so nothing is cancelled here.
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return call_tuples(calls) if isinstance(calls, (list, tuple)) else repr(calls)


def _check_echo(ctx: CheckContext, request: ChatRequest, response: Any) -> None:
    """Report a thinking block that came back with another signature."""
    if not isinstance(response, ChatResponse):
        return
    sent = {
        block.thinking: block.signature
        for message in request.messages
        for block in (message.content if isinstance(message.content, list) else [])
        if isinstance(block, ThinkingBlock) and block.signature
    }
    for block in response.content:
        if (
            isinstance(block, ThinkingBlock)
            and block.thinking in sent
            and block.signature != sent[block.thinking]
        ):
            what = (
                f"the thought {block.thinking!r} was sent with the signature "
                f"{sent[block.thinking]!r} and came back with {block.signature!r}"
            )
            ctx.fault("P6", what)


@check(
    "P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P14", "P19", "P23",
    kind="behaviour", types=_PROVIDER, inputs="provider_dialogues", needs_success=_OF_RESPONSES,
    on=with_provider,
)  # fmt: skip
async def leads_a_conversation(mounted: MountedModule) -> None:
    """Hold conversations of several turns. Check responses, events, ids and earlier requests."""
    ctx, case = mounted.ctx, mounted.ctx.case
    ids: set[str] = set()
    past: list[tuple[str, Any, Any]] = []
    request = asking(case["words"][0])
    request.tools = request.tools if case["tools"] else None
    for words in [*case["words"][1:], ""]:
        emitted, before = len(mounted.events.get_events("llm:response")), snapshot(request)
        outcome = await send(mounted, request, **copy.deepcopy(case["options"]))
        if outcome.kind == "raised":
            await _check_failure(ctx, outcome, turns=len(past) // 2 + 1)
        response = outcome.value
        if not isinstance(response, ChatResponse) or _is_over(ctx):
            return
        own = {call.id for call in calls_of(response)}
        for again in sorted(own & ids)[:1]:
            ctx.fault("P9", f"the id {again!r} was given to a call of an earlier answer, too")
        ids |= own
        check_events(ctx, response, (await response_events(mounted, emitted + 1))[emitted:])
        for what, value, earlier in past:
            if snapshot(value) != earlier:
                clause = "P8" if what == "request" else "P14"
                ctx.fault(clause, f"an earlier {what} was changed by the next request")
                break
        past += [("request", request, before), ("response", response, snapshot(response))]
        if _is_over(ctx):
            return
        request = continued(request, response, words)
        # This is as if the rest no longer fitted into the budget.
        if case.get("compacts") and request.messages[-1].role == "user":
            del request.messages[:-1]


def _is_over(ctx: CheckContext) -> bool:
    """Return whether there is a fault other than of events, which end no conversation."""
    return any(fault.clause not in ("P11", "P23") for fault in ctx.faults)


async def _check_failure(ctx: CheckContext, outcome: Outcome, turns: int) -> None:
    """Report a wrong error at the end of a turn."""
    options = ctx.case["options"]
    if options and turns == 1 and await _answers_plainly(ctx):
        what = f"complete with the keywords {sorted(options)} {outcome}; without them it answers"
        ctx.fault("P3", what, error=outcome.error)
        return
    check_error(ctx, outcome)
    if turns == 1 or not isinstance(outcome.error, InvalidRequestError):
        return
    # After a refusal at a later turn, either the turns are too many, or the provider refuses its
    # own response.
    async with ctx.mount() as fresh:
        plain = [await complete(fresh, asking("Hello.")) for _ in range(turns)]
    if all(answer.returned for answer in plain):
        what = (
            "a conversation with the provider's own answers was refused "
            f"at turn {turns}: {outcome.error}"
        )
        ctx.fault("P6", what, error=outcome.error)


@check("P5", "P11", "P23", kind="behaviour", types=_PROVIDER)
async def counts_each_call_alone(ctx: CheckContext) -> None:
    """Send one request several times, and compare the reported and counted usage of the answers."""
    async with with_provider(ctx) as mounted:
        if mounted is None:
            return
        responses = []
        for _ in range(4):
            emitted = len(mounted.events.get_events("llm:response"))
            responses.append((await complete(mounted, asking("Hello."))).value)
            if isinstance(responses[-1], ChatResponse) and isinstance(responses[-1].usage, Usage):
                events = await response_events(mounted, emitted + 1)
                check_events(ctx, responses[-1], events[emitted:])
        models = (await mounted.call(mounted.instance.list_models)).value
    if not all(
        isinstance(response, ChatResponse) and isinstance(response.usage, Usage)
        for response in responses
    ):
        return
    _check_cost(ctx, responses[0].usage, models)
    contents = {
        without_ids(ChatResponse(content=response.content, tool_calls=response.tool_calls))
        for response in responses
    }
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        counts = [getattr(response.usage, key) for response in responses]
        if len(contents) == 1 and all(one < two for one, two in itertools.pairwise(counts)):
            what = f"the same request, answered the same way, counts {counts} {key}"
            ctx.fault("P5", f"{what}: they add up over calls")
            return


_PASSING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "top_p": 0.5},
    {"max_output_tokens": 64},
    {"stop": ["END"]},
    {"reasoning_effort": "high"},
    {"conversation_id": "conversation-7", "metadata": {"trace": 7}},
    {"tool_choice": "none"},
    {"tools": None},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]},
    {"model": "no-such-model"},
)
"""Fields of one request that the next one does not have."""


@check("P14", kind="behaviour", types=_PROVIDER)
async def forgets_the_request_before(ctx: CheckContext) -> None:
    """Send a request with special fields, then a plain one, and expect the usual answer to it."""
    async with with_provider(ctx) as mounted:
        if mounted is None:
            return
        listed = (await mounted.call(mounted.instance.list_models)).value
    models = [model.id for model in listed if isinstance(model, ModelInfo)] if listed else []
    for tools in (True, False):
        usual = await _answers_after(ctx, {}, tools)
        # The answers of this provider differ anyway.
        if usual is None or usual != await _answers_after(ctx, {}, tools):
            return
        for own in (*_PASSING, *({"model": model} for model in models[:3])):
            answers = await _answers_after(ctx, own, tools)
            # A refused request may not count as a turn.
            if answers is None or answers[1] in usual:
                continue
            if await _answers_after(ctx, own, tools) == answers:
                what = (
                    f"after a request with {next(iter(own))!r} one without it was answered "
                    f"{answers[1][:120]}; expected {usual[1][:120]}"
                )
                ctx.fault("P14", what, given=own)
                return


async def _answers_after(
    ctx: CheckContext, own: dict[str, Any], has_tools: bool
) -> tuple[str, str] | None:
    """Return the answers to a request with special fields and to a plain one after it.

    Return None if one of them is refused.
    """
    plain = to_dict(asking("Hello. Please use a tool."))
    if not has_tools:
        plain["tools"] = None
    answers = []
    async with with_provider(ctx) as mounted:
        for given in ({**plain, "tools": to_dict(asking(""))["tools"], **own}, plain):
            if mounted is None:
                return None
            heard = len(mounted.events.get_events("llm:response"))
            outcome = await complete(mounted, from_dict(ChatRequest, copy.deepcopy(given)))
            if not isinstance(outcome.value, ChatResponse):
                return None
            answer = outcome.value
            text = without_ids(ChatResponse(content=answer.content, tool_calls=answer.tool_calls))
            events = (await response_events(mounted, heard + 1))[heard:]
            answers.append(f"{text} by {[event.get('model') for event in events]}")
    return answers[0], answers[1]


_ODD_OPTIONS: tuple[dict[str, Any], ...] = (
    {"model": "no-such-model"},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}},
        }
    },
    {"max_output_tokens": 1, "stop": ["e"], "temperature": 1.9},
)
"""Options that not every provider supports."""


def _check_cost(ctx: CheckContext, usage: Usage, models: Any) -> None:
    """Report a cost that is far from the provider's own prices. Cached tokens may be cheaper."""
    prices = (
        [model.pricing for model in models if model.pricing is not None]
        if isinstance(models, list)
        else []
    )
    if usage.cost_usd is None or usage.cache_read_tokens or usage.cache_write_tokens or not prices:
        return
    listed = [
        (
            usage.input_tokens * price.input_per_million
            + usage.output_tokens * price.output_per_million
        )
        / 1e6
        for price in prices
    ]
    if not min(listed) / 2 <= float(usage.cost_usd) <= max(listed) * 2 + 1e-5:
        what = f"{usage.input_tokens} and {usage.output_tokens} tokens cost {usage.cost_usd}"
        ctx.fault("P5", f"{what}; by the prices of list_models it is {max(listed):.6g}")


@check("P4", "P19", kind="behaviour", types=_PROVIDER)
async def says_what_it_cannot_do(ctx: CheckContext) -> None:
    """Send options that may be unsupported, and expect a response or an LLMError."""
    if not await _answers_plainly(ctx):
        return
    for options in _ODD_OPTIONS:
        outcome = await complete_alone(
            ctx, from_dict(ChatRequest, {**to_dict(asking("Hello.")), **options})
        )
        if outcome.kind == "raised":
            check_error(ctx, outcome)
        elif outcome.returned and not isinstance(outcome.value, ChatResponse):
            ctx.fault("P4", f"complete {outcome}; expected a ChatResponse", given=options)
        if ctx.faults:
            return


def check_error(ctx: CheckContext, outcome: Outcome) -> None:
    """Report an error that a failed call may not raise."""
    error = outcome.error
    if not isinstance(error, LLMError):
        ctx.fault("P19", f"complete {outcome}; expected an LLMError", error=error)
        return
    retryable: Any = error.retryable
    if not isinstance(retryable, bool):
        ctx.fault(
            "P19",
            f"{type(error).__name__} has retryable {retryable!r}; expected True or False",
            error=error,
        )


async def response_events(mounted: MountedModule, wanted: int) -> list[dict[str, Any]]:
    """Return the llm:response events so far, after a short wait for those of separate tasks."""
    with anyio.move_on_after(_EVENT_SECONDS):
        # A recorder has no event to wait for.
        while len(mounted.events.get_events("llm:response")) < wanted:  # noqa: ASYNC110
            await anyio.sleep(0.001)
    return [data for _, data in mounted.events.get_events("llm:response")]


def check_events(ctx: CheckContext, response: ChatResponse, events: list[dict[str, Any]]) -> None:
    """Report an llm:response event that is missing, or lacks the usage of its response."""
    # One report is enough.
    if any(fault.clause in ("P11", "P23") for fault in ctx.faults):
        return
    if not events:
        ctx.fault("P11", "a response was returned before llm:response was emitted")
        return
    usage = events[-1].get("usage")
    usage = to_dict(usage) if isinstance(usage, Usage) else usage
    if not isinstance(usage, dict):
        ctx.fault("P23", f"llm:response was emitted with usage {usage!r}; expected a dict")
        return
    for key in _USAGE_KEYS:
        if not isinstance(usage.get(key), int):
            ctx.fault("P23", f"llm:response was emitted with usage {usage!r}, without {key!r}")
            return
    counted = response.usage
    assert isinstance(counted, Usage)
    cached = [key for key in _CACHE_KEYS if getattr(counted, key) is not None]
    # Providers count cached input tokens in different ways.
    compared = (
        cached
        if counted.cache_read_tokens or counted.cache_write_tokens
        else [*cached, *_USAGE_KEYS]
    )
    for key in compared:
        if usage.get(key) != getattr(counted, key):
            own = getattr(counted, key)
            ctx.fault("P23", f"the response has {key}={own}; llm:response has {usage.get(key)!r}")
            return


_FINISH_REASONS = (None, "tool_calls", "tool_use", "stop", "end_turn")
"""Finish reasons with which services end a response with calls."""
_CALL: dict[str, Any] = {"name": "look", "input": {"text": "é", "n": [1, {"deep": None}]}}
_BLOCKS: tuple[dict[str, Any], ...] = (
    {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmF0dXJl"},
    _CALL,
    {"type": "text", "text": "words", "visibility": "internal"},
    {"name": "a.b-c", "input": {}},
    _CALL,
    {"name": "count", "input": {"text": "x", "b": False}},
)
"""Blocks of a response. Blocks without a type are calls, two of which differ only in their ids."""


@check("P10", kind="behaviour", types=_PROVIDER, on=with_provider)
async def reads_calls(mounted: MountedModule) -> None:
    """Pass responses with calls between other blocks to parse_tool_calls."""
    ctx = mounted.ctx
    for reason, blocks in itertools.product(
        _FINISH_REASONS, (_BLOCKS, _BLOCKS[::-1], _BLOCKS[:1], ())
    ):
        response = _answer(blocks, "toolu_é")
        response.finish_reason = reason
        before = snapshot(response)
        parsed, expected = _parsed(mounted, response), call_tuples(response.tool_calls or [])
        if parsed != expected:
            ended = "" if reason is None else f" with the finish_reason {reason!r}"
            ctx.fault(
                "P10",
                f"parse_tool_calls gave {parsed!r} for a response{ended}; expected {expected!r}",
            )
        elif snapshot(response) != before:
            ctx.fault("P10", "parse_tool_calls changed the response")
        if ctx.faults:
            return


def _answer(blocks: Sequence[dict[str, Any]], word: str) -> ChatResponse:
    """Return a response with these blocks. Blocks without a type are calls."""
    content = [
        block
        if "type" in block
        else {"type": "tool_call", "id": f"{word}-{number}", **copy.deepcopy(block)}
        for number, block in enumerate(blocks)
    ]
    response = from_dict(ChatResponse, {"content": content})
    response.tool_calls = calls_of(response) or None
    response.usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    return response


# ── description, mounting and streams ──

_STREAMED = (
    ("Hello.",),
    ("Repeat this sentence to its last word, for it has to be sent in several pieces.",),
    ("Hello.", "Hi.", "Go on."),
    ("Please use a tool.",),
    ("Think step by step.",),
    ("Use the tool look and then count.", "Yes.", "And now?"),
)
"""The conversation before a stream, with the user and the model taking turns."""
_FLAGS = ("raw", "debug")
_CONNECTING = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "urllib.Request",
    "http.client.connect",
)


@check("P12", "P13", "P20", "P24", kind="structure", types=_PROVIDER)
async def describes_itself(ctx: CheckContext) -> None:
    """Call get_info and watch for connections, and list_models with and without credentials."""
    async with with_provider(ctx) as mounted:
        if mounted is None:
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
                value = defaults.get(key)
                if not isinstance(value, int):
                    what = f"the defaults of get_info have {key} {value!r}; expected a number"
                    ctx.fault("P20", what)
        await _check_models(mounted, "")
    if ctx.has_violations:
        return
    with without_secrets(ctx.loaded):
        try:
            async with with_provider(ctx, config={}) as mounted:
                if mounted is not None:
                    await _check_models(mounted, " without credentials")
        except MountFailed:
            return


async def _check_models(mounted: MountedModule, how: str) -> None:
    outcome = await mounted.call(mounted.instance.list_models)
    models = outcome.value
    if outcome.kind == "raised":
        mounted.ctx.fault(
            "P12", f"list_models{how} {outcome}; expected a list", error=outcome.error
        )
    elif outcome.returned and not (
        isinstance(models, list) and all(isinstance(model, ModelInfo) for model in models)
    ):
        mounted.ctx.fault(
            "P12", f"list_models{how} returned {str(models)[:120]}; expected a list of ModelInfo"
        )


@check("P15", kind="structure", types=_PROVIDER, without_instance=("P15",))
async def declines_politely(ctx: CheckContext) -> None:
    """Mount it without settings and keys, and expect it to decline with a warning."""
    needs = [key for key in settings_in(ctx.loaded.target) if is_secret(key)]
    if not needs and not secret_variables(ctx.loaded):
        return
    try:
        with (
            without_secrets(ctx.loaded),
            captured_logs(lambda record: record.levelno >= logging.WARNING) as records,
        ):
            async with ctx.mount(config={}) as mounted:
                own = [record for record in records if OWNER not in record.getMessage()]
                if mounted.instance is None and not own:
                    ctx.fault("P15", "without a key mount declined and logged no warning")
    except MountFailed as failed:
        what = f"without settings mount {failed.outcome}; expected a warning and None"
        ctx.fault("P15", what, error=failed.outcome.error)


@check("P18", kind="structure", types=_PROVIDER, on=CheckContext.mount)
async def can_be_closed(mounted: MountedModule) -> None:
    """Look for a cleanup that can close a provider with a close method."""
    ctx = mounted.ctx
    provider = mounted.instance
    closing = [name for name in ("aclose", "close") if callable(getattr(provider, name, None))]
    is_closed = mounted.is_structured or mounted.cleanup is not None or mounted.registered_cleanups
    if provider is not None and closing and not is_closed:
        ctx.fault(
            "P18",
            f"the provider has {closing[0]}(), and mount returned no cleanup that could call it",
        )


@check("P17", kind="behaviour", types=_PROVIDER)
async def shows_what_it_sends(ctx: CheckContext) -> None:
    """Turn on a flag such as raw, if there is one, and compare the events with and without it."""
    flags = [
        key
        for key in settings_in(ctx.loaded.target)
        if any(word in key.lower().split("_") for word in _FLAGS)
    ]
    if not flags:
        return
    quiet = await _events_of_a_call(ctx, dict.fromkeys(flags, False))
    loud = await _events_of_a_call(ctx, dict.fromkeys(flags, True))
    if quiet is None or loud is None:
        return
    for name in ("llm:request", "llm:response"):
        if name in loud and not loud[name] - quiet.get(name, set()):
            ctx.fault("P17", f"with {flags[0]}=True {name} has no more keys than without it")
            return
    if "llm:request" not in loud:
        ctx.fault("P17", f"with {flags[0]}=True llm:request is not emitted")


async def _events_of_a_call(
    ctx: CheckContext, flags: dict[str, bool]
) -> dict[str, set[str]] | None:
    """Return the keys of the payloads of one call's events, or None if there was no answer."""
    try:
        async with with_provider(ctx, config={**ctx.loaded.config, **flags}) as mounted:
            if mounted is None or not (await complete(mounted, asking("Hello."))).returned:
                return None
            keys: dict[str, set[str]] = {}
            for name, payload in mounted.events.events:
                keys.setdefault(name, set()).update(payload)
            return keys
    except MountFailed:
        return None


@check("P11", "P21", "P23", kind="behaviour", types=_PROVIDER)
async def streams_the_same(ctx: CheckContext) -> None:
    """Compare the last chunk of a stream, and its deltas, with the response of complete."""
    own = [(text,) for text in texts_in(ctx.loaded.target) if " " in text][:_MAX_OWN_TEXTS]
    thinking = _config(ctx, "thinking")
    for words, config in (
        *((words, None) for words in (*_STREAMED, *own)),
        *(((words, thinking) for words in _STREAMED[2:4]) if thinking is not None else ()),
    ):
        async with with_stream(ctx, config=config) as mounted:
            if mounted is None:
                return
            response = await _streamed_response(mounted, words)
        if response is None or ctx.faults:
            return
        # A reader that has the response may stop.
        async with ctx.mount(config=config) as mounted:
            await mounted.call(_streamed, mounted.instance, _said(words), is_left=True)
            check_events(ctx, response, await response_events(mounted, 1))
        whole = [await _whole(ctx, words, config), await _whole(ctx, words, config)]
        if None not in whole and whole[0] == whole[1] and without_ids(response) != whole[0]:
            ctx.fault(
                "P21",
                "the response of the last chunk differs from that of complete to the same request",
            )


_MAX_OWN_TEXTS = 3


def _said(words: tuple[str, ...]) -> ChatRequest:
    request = asking(words[-1])
    request.messages = [
        Message(role="assistant" if number % 2 else "user", content=text)
        for number, text in enumerate(words)
    ]
    return request


async def _streamed_response(mounted: MountedModule, words: tuple[str, ...]) -> ChatResponse | None:
    """Read a stream, check its chunks, and return its response, or None if there is none."""
    ctx, request = mounted.ctx, _said(words)
    before = snapshot(request)
    outcome = await mounted.call(_streamed, mounted.instance, request)
    # There is another kind of stream, or none for this request.
    if not outcome.returned or outcome.value is None:
        return None
    chunks: list[StreamChunk] = outcome.value
    expect_unchanged(ctx, request, before)
    last = chunks[-1] if chunks else None
    if last is None or not isinstance(last.response, ChatResponse):
        ctx.fault("P21", "the last chunk of a stream has no response")
        return None
    if any(chunk.response is not None for chunk in chunks[:-1]):
        ctx.fault("P21", "a chunk before the last one has a response")
    _check_deltas(ctx, chunks, last.response)
    _check_blocks(ctx, chunks, last.response)
    check_events(ctx, last.response, await response_events(mounted, 1))
    return last.response


async def _streamed(
    provider: Any, request: ChatRequest, *, is_left: bool = False
) -> list[StreamChunk] | None:
    """Return the chunks of a stream, read to its end or to the response.

    Return None for another kind of stream.
    """
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


@check("P22", kind="behaviour", types=_PROVIDER, on=with_stream)
async def streams_without_a_block(mounted: MountedModule) -> None:
    """Read a stream without its block, exit others early, and cancel the reader of one."""
    ctx = mounted.ctx
    blocked = await mounted.call(_streamed, mounted.instance, asking("Hello."))
    # There is another kind of stream, or none for this request.
    if not blocked.returned or not blocked.value:
        return
    bare = await mounted.call(_read_bare, mounted.instance, asking("Hello."))
    if not bare.returned:
        ctx.fault("P22", f"reading a stream with async for alone {bare}", error=bare.error)
    elif bare.value is None:
        what = "the result of stream is not an async iterator: it lacks __aiter__ or __anext__"
        ctx.fault("P22", what)
    elif [chunk.kind for chunk in bare.value[-1:]] != [chunk.kind for chunk in blocked.value[-1:]]:
        what = (
            "with async for alone, a stream ends with another kind of chunk than inside its block"
        )
        ctx.fault("P22", what)
    if ctx.faults:
        return
    early = await mounted.call(_leave_early, mounted.instance, asking("Hello."))
    again = await mounted.call(_streamed, mounted.instance, asking("Hello."))
    if early.kind == "late" or (early.returned and again.kind == "late"):
        what = f"of {_EARLY} streams that were left early, or after them, one never ends"
        ctx.fault("P22", what)
        return
    left = await mounted.call(_cancelled_reader, mounted.instance, asking("Hello."))
    if left.returned and left.value is not None:
        ctx.fault("P22", f"after its reader was cancelled a stream continues: {left.value}")


async def _read_bare(provider: Any, request: ChatRequest) -> list[StreamChunk] | None:
    stream = provider.stream(request)
    if not hasattr(type(stream), "__aiter__") or not hasattr(type(stream), "__anext__"):
        return None
    return [chunk async for chunk in stream]


_EARLY = 20
"""Number of streams that are exited early, because each may keep a slot."""


async def _leave_early(provider: Any, request: ChatRequest) -> None:
    for _ in range(_EARLY):
        async with provider.stream(request) as stream:
            await anext(aiter(stream), None)


async def _cancelled_reader(provider: Any, request: ChatRequest) -> str | None:
    """Return the chunk of a stream after its reader was cancelled.

    Return None if the stream has ended, or never waited.
    """
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


def _check_blocks(ctx: CheckContext, chunks: list[StreamChunk], response: ChatResponse) -> None:
    """Report blocks of a stream with starts and ends that don't match. A stream may omit both."""
    begun = [chunk.index for chunk in chunks if chunk.kind == "block_start"]
    ended = [chunk.index for chunk in chunks if chunk.kind == "block_end"]
    if begun and ended and sorted(begun) != sorted(ended):
        what = f"a stream begins the blocks {sorted(begun)} and ends the blocks {sorted(ended)}"
        ctx.fault("P21", what)
        return
    for chunk in chunks:
        if chunk.kind != "block_end" or chunk.block is None:
            continue
        if chunk.index >= len(response.content) or (
            response.content[chunk.index].type != chunk.block.type
        ):
            what = f"a stream ends a {chunk.block.type} block under the index {chunk.index}"
            kinds = [block.type for block in response.content]
            ctx.fault("P21", f"{what}; the response has the blocks {kinds}")
            return
        whole = response.content[chunk.index]
        for key in ("text", "thinking"):
            streamed = getattr(chunk.block, key, None)
            if isinstance(streamed, str) and streamed != getattr(whole, key, None):
                what = f"a stream ends block {chunk.index} with the {key} {streamed[:80]!r}"
                ctx.fault(
                    "P21", f"{what}; the response has {str(getattr(whole, key, None))[:80]!r}"
                )
                return


def _check_deltas(ctx: CheckContext, chunks: list[StreamChunk], response: ChatResponse) -> None:
    pieces: dict[int, str] = {}
    for chunk in chunks:
        if chunk.kind == "block_delta" and chunk.text:
            pieces[chunk.index] = pieces.get(chunk.index, "") + chunk.text
    for index, text in pieces.items():
        whole = (
            getattr(response.content[index], "text", None)
            if index < len(response.content)
            else None
        )
        if whole is not None and whole != text:
            ctx.fault(
                "P21",
                f"the pieces of block {index} make {text[:80]!r}; the response has {whole[:80]!r}",
            )
            return


async def _whole(
    ctx: CheckContext, words: tuple[str, ...], config: dict[str, Any] | None
) -> str | None:
    response = (await complete_alone(ctx, _said(words), config)).value
    return without_ids(response) if isinstance(response, ChatResponse) else None


# ── requests and responses on the wire, of providers that can use the fake LLM server ──

_SENT_SIGNATURE = "c2VudC1zaWduYXR1cmU="
_SENT_REDACTED = "c2VudC1yZWRhY3RlZA=="
_RETRYABLE = {401: False, 400: False, 429: True, 503: True}


def _config(ctx: CheckContext, scenario: str) -> dict[str, Any] | None:
    """Return the settings for a scenario, or None if the provider does not use the server."""
    return with_scenario(ctx.loaded.config, scenario) if is_served(ctx.loaded.config) else None


async def _exchange(
    ctx: CheckContext, scenario: str, request: ChatRequest
) -> tuple[ChatResponse, dict[str, Any], EventRecorder] | None:
    """Send a request in a scenario.

    Returns the response, the last HTTP request of the provider, and the events. None if the
    provider does not use the server or returns no response.
    """
    config = _config(ctx, scenario)
    if config is None:
        return None
    async with with_provider(ctx, config=config) as mounted:
        if mounted is None:
            return None
        received_requests()
        outcome = await complete(mounted, request)
        sent = received_requests()
        if not outcome.returned or not isinstance(outcome.value, ChatResponse) or not sent:
            return None
        return outcome.value, sent[-1], mounted.events


@check("P6", kind="behaviour", types=_PROVIDER)
async def reads_the_wire(ctx: CheckContext) -> None:
    """Compare a conversation with its form on the wire, and the response with the answer."""
    exchange = await _exchange(ctx, "thinking", _conversation())
    if exchange is None:
        return
    response, sent, _ = exchange
    # Only this protocol has signed thinking blocks.
    is_signed = str(sent["path"]).rsplit("/", 1)[-1].startswith("messages")
    for problem in (
        _problem_with_sent(sent["body"], is_signed),
        _problem_with_received(response, is_signed),
    ):
        if problem is not None:
            ctx.fault("P6", problem)
            return


def _conversation() -> ChatRequest:
    """Return a conversation with a mark in each of its parts."""
    content = [
        {"type": "thinking", "thinking": "mark-thought", "signature": _SENT_SIGNATURE},
        {"type": "redacted_thinking", "data": _SENT_REDACTED},
        {"type": "text", "text": "mark-two"},
        {"type": "tool_call", "id": "toolu_mark1", "name": "look", "input": {"text": "mark-three"}},
        {"type": "tool_call", "id": "toolu_mark2", "name": "count", "input": {"text": "mark-four"}},
    ]
    return ChatRequest(
        messages=[
            Message(role="system", content="mark-zero"),
            Message(role="user", content=[TextBlock(text="mark-one")]),
            # A message converts dicts to blocks.
            Message(role="assistant", content=content),  # type: ignore[arg-type]
            Message(role="tool", tool_call_id="toolu_mark1", content="mark-five"),
            Message(role="tool", tool_call_id="toolu_mark2", content="mark-six"),
            Message(role="user", content="mark-seven"),
        ],
        tools=tool_specs(),
    )


def _problem_with_sent(body: dict[str, Any], is_signed: bool) -> str | None:
    """Describe a part of the conversation that is missing from an HTTP request, or out of order."""
    everything, text = (
        json.dumps(body),
        json.dumps(body.get("messages") or body.get("input") or body),
    )
    marks = [
        f"mark-{word}" for word in ("zero", "one", "two", "three", "four", "five", "six", "seven")
    ]
    for mark in marks:
        if mark not in everything:
            return f"the text {mark!r} of the conversation did not reach the service"
    places = [text.find(mark) for mark in marks[1:]]
    if places != sorted(places):
        return "the parts of the conversation reached the service in another order"
    for call_id in ("toolu_mark1", "toolu_mark2"):
        times = everything.count(call_id)
        if times < 2:
            return f"the id {call_id!r} of a call and its result reached the service {times} times"
    for what, sent in (("signature", _SENT_SIGNATURE), ("redacted thought", _SENT_REDACTED)):
        if is_signed and sent not in everything:
            return f"the {what} {sent!r} of the conversation did not reach the service"
    return None


def _problem_with_received(response: ChatResponse, is_signed: bool) -> str | None:
    """Describe a part of the service's answer that is missing from the response."""
    calls = calls_of(response)
    if [(call.name, call.arguments) for call in calls] != [("look", {"text": "é 0"})]:
        received = call_tuples(calls)
        return f"the service called 'look' with {{'text': 'é 0'}}; the response has {received!r}"
    if not any(
        isinstance(block, TextBlock) and "mark-seven" in block.text for block in response.content
    ):
        return f"the text that the service sent is not in the response: {response.content!r}"[:300]
    types, expected = (
        [block.type for block in response.content],
        ["thinking", "redacted_thinking", "text", "tool_call"],
    )
    if not is_signed:
        return None
    if types != expected:
        return f"the service sent blocks {expected!r}; the response has {types!r}"
    thought, redacted = response.content[:2]
    if not isinstance(thought, ThinkingBlock) or (thought.thinking, thought.signature) != (
        THOUGHT,
        SIGNATURE,
    ):
        return (
            f"the service sent a thought with the signature {SIGNATURE!r}; "
            f"the response has {thought!r}"
        )
    if getattr(redacted, "data", None) != REDACTED:
        return f"the service sent a redacted thought {REDACTED!r}; the response has {redacted!r}"
    return None


@check("P16", kind="behaviour", types=_PROVIDER)
async def sends_no_loose_call(ctx: CheckContext) -> None:
    """Send a call without a result, which the provider should repair in its request."""
    call = ToolCallBlock(id="toolu_loose", name="look", input={})
    messages = [
        Message(role="user", content="Look."),
        Message(role="assistant", content=[call]),
        Message(role="user", content="And?"),
    ]
    exchange = await _exchange(ctx, "auto", ChatRequest(messages=messages, tools=tool_specs()))
    if exchange is None:
        return
    _, sent, events = exchange
    if json.dumps(sent["body"]).count("toolu_loose") == 1:
        ctx.fault("P16", "a tool call without a result was sent to the service unchanged")
    elif not events.get_events("provider:tool_sequence_repaired"):
        what = (
            "a tool call without a result was repaired, "
            "and provider:tool_sequence_repaired not emitted"
        )
        ctx.fault("P16", what)


@check("P19", kind="behaviour", types=_PROVIDER)
async def names_failures(ctx: CheckContext) -> None:
    """Let the server return error codes, refuse the connection, and check the errors."""
    for status, may_help in _RETRYABLE.items():
        config = _config(ctx, f"status-{status}")
        if config is None:
            break
        await _check_refusal(ctx, config, f"an answer with status {status}", may_help)
    config = _config(ctx, "auto")
    if config is not None and not ctx.faults:
        nowhere = json.loads(json.dumps(config).replace("{service}", "http://127.0.0.1:9"))
        await _check_refusal(ctx, nowhere, "a connection that was refused", None)


async def _check_refusal(
    ctx: CheckContext, config: dict[str, Any], what: str, may_help: bool | None
) -> None:
    try:
        outcome = await complete_alone(ctx, asking("Hello."), config)
    except MountFailed:
        return
    if outcome.returned:
        ctx.fault("P19", f"after {what} complete returned as if nothing had happened")
    elif outcome.kind == "raised":
        check_error(ctx, outcome)
        error = outcome.error
        if isinstance(error, LLMError) and may_help is not None and error.retryable is not may_help:
            actual = f"after {what} {type(error).__name__} has retryable={error.retryable}"
            ctx.fault("P19", f"{actual}; expected {may_help}", error=error)
