"""Checks of providers: members, responses, usage, tool calls and their ids, errors. Requests are built from JSON values."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.calls import check_methods
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.mounted import CheckContext, MountedModule
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
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    ToolSpec,
    Usage,
    from_dict,
    to_dict,
    to_json,
)

TOOLS = ("look", "count")


def tool_specs(names: Sequence[str] = TOOLS) -> list[ToolSpec]:
    """The offered tools."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [ToolSpec(name=name, description=f"The tool {name}.", parameters=copy.deepcopy(schema)) for name in names]


def request_from(case: Mapping[str, Any]) -> ChatRequest:
    """The request of a case: messages as JSON, and options."""
    tools = tool_specs() if case.get("tools", True) else None
    given = {**case.get("options", {}), "messages": copy.deepcopy(case["messages"])}
    request = from_dict(ChatRequest, given)
    request.tools = tools
    return request


def asking(text: str, names: Sequence[str] = TOOLS) -> ChatRequest:
    """A request with one user message."""
    return ChatRequest(messages=[Message(role="user", content=text)], tools=tool_specs(names))


async def complete(mounted: MountedModule, request: ChatRequest, **options: Any) -> Outcome:
    """Call complete."""
    return await mounted.call(mounted.instance.complete, request, **options)


def calls_of(response: ChatResponse) -> list[ToolCall]:
    """The calls of a response: those it lists, else those among its blocks."""
    if response.tool_calls:
        return list(response.tool_calls)
    return [
        ToolCall(id=block.id, name=block.name, arguments=block.input)
        for block in response.content
        if isinstance(block, ToolCallBlock)
    ]


def call_tuples(calls: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Calls as ids, names and arguments."""
    return [
        (getattr(call, "id", None), getattr(call, "name", None), getattr(call, "arguments", None)) for call in calls
    ]


def continued(request: ChatRequest, response: ChatResponse, next_words: str) -> ChatRequest:
    """The next request of a conversation: the response, then results for its calls or the next user message."""
    messages = [*copy.deepcopy(request.messages), Message(role="assistant", content=copy.deepcopy(response.content))]
    calls = calls_of(response)
    for call in calls:
        messages.append(Message(role="tool", tool_call_id=call.id, name=call.name, content=f"result of {call.name}"))
    if not calls:
        messages.append(Message(role="user", content=next_words))
    return ChatRequest(messages=messages, tools=copy.deepcopy(request.tools))


def without_ids(response: ChatResponse) -> str:
    """A response as text with numbers in place of call ids."""
    text = json.dumps(to_dict(response), sort_keys=True, default=str)
    for number, call in enumerate(calls_of(response)):
        text = text.replace(json.dumps(call.id), f'"<call {number}>"')
    return text


def problem_with(response: Any) -> tuple[str, str] | None:
    """The clause that a response breaks by itself, and how; None if it breaks none."""
    if not isinstance(response, ChatResponse):
        return "P4", f"complete returned {type(response).__name__}; expected a ChatResponse"
    content: Any = response.content  # anything may have been assigned since
    if not isinstance(content, list) or not all(hasattr(block, "type") for block in content):
        return "P4", f"the content of a response is {str(response.content)[:120]!r}; expected a list of blocks"
    usage = response.usage
    if not isinstance(usage, Usage):
        return "P5", f"a response came with usage {usage!r}; expected a Usage"
    counts: tuple[Any, ...] = (usage.input_tokens, usage.output_tokens, usage.total_tokens)
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return "P5", f"usage counts {counts!r}; expected whole numbers from 0 up"
    if usage.total_tokens != usage.input_tokens + usage.output_tokens:
        total = usage.input_tokens + usage.output_tokens
        return "P5", f"usage has total_tokens {usage.total_tokens}; input and output make {total}"
    return _problem_with_json(response) or _problem_with_calls(response)


def _problem_with_json(response: ChatResponse) -> tuple[str, str] | None:
    try:
        text = to_json(response)
        again = from_dict(ChatResponse, json.loads(text))
    except (ValueError, TypeError) as error:
        return "P6", f"a response cannot be written and read as JSON: {error}"
    before, after = [block.type for block in response.content], [block.type for block in again.content]
    if before != after:
        return "P6", f"a response has blocks {before!r}; written and read as JSON they are {after!r}"
    return None


def _problem_with_calls(response: ChatResponse) -> tuple[str, str] | None:
    blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
    calls = calls_of(response)
    for call in calls:
        call_id: Any = call.id
        if not isinstance(call_id, str) or not call_id.strip():
            return "P9", f"the call of {call.name!r} has the id {call_id!r}; expected a text that is not empty"
    ids = [call.id for call in calls]
    if len(set(ids)) < len(ids):
        return "P9", f"a response has calls with the ids {ids!r}; expected each once"
    if response.tool_calls and blocks:
        listed, shown = call_tuples(response.tool_calls), [(block.id, block.name, block.input) for block in blocks]
        if listed != shown:
            return "P10", f"a response lists the calls {listed!r}, and its blocks contain {shown!r}"
    return None


def snapshot(value: ChatRequest | ChatResponse) -> Any:
    """A copy of a request or a response to compare with later."""
    return copy.deepcopy(to_dict(value))


PROVIDER = ("provider",)
_OTHER_REASONS = (
    AbortError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    LLMTimeoutError,
    ProviderUnavailableError,
    RateLimitError,
)
"""Errors that have other reasons than the content of a request."""
_EVENT_SECONDS = 0.2
_USAGE_KEYS = ("input_tokens", "output_tokens")
_CACHE_KEYS = ("cache_read_tokens", "cache_write_tokens")


def usable(mounted: MountedModule) -> bool:
    """Whether there is a provider that can be called."""
    return isinstance(mounted.instance, Provider)


async def send(mounted: MountedModule, request: ChatRequest, **options: Any) -> Outcome:
    """Call complete; report a change of the request and a response that breaks a clause by itself."""
    before = snapshot(request)
    outcome = await complete(mounted, request, **options)
    expect_unchanged(mounted.ctx, request, before)
    if outcome.returned:
        check_response(mounted, outcome.value)
    return outcome


@check("P1", kind="structure", types=PROVIDER)
async def has_five_members(ctx: CheckContext) -> None:
    """Reads the name and calls each of the four methods; two of them have to be async."""
    async with ctx.mount() as mounted:
        provider = mounted.instance
        if provider is None:
            return
        own_name: Any = getattr(provider, "name", None)
        if not isinstance(own_name, str) or not own_name:
            ctx.fault("P1", f"the provider's name is {own_name!r}; expected a text")
        calls: list[tuple[str, bool, tuple[Any, ...], dict[str, Any]]] = [
            ("get_info", False, (), {}),
            ("list_models", True, (), {}),
            ("complete", True, (asking("Hello."),), {}),
            ("parse_tool_calls", False, (_answer([], "call"),), {}),
        ]
        await check_methods(mounted, "P1", calls)


_OF_RESPONSES = ("P3", "P4", "P5", "P6", "P7", "P8", "P9", "P14", "P23")
"""The clauses about responses, which a provider that never answers does not show."""


@check(
    "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P19",
    kind="behaviour", types=PROVIDER, inputs="provider_requests", needs_success=_OF_RESPONSES,
)  # fmt: skip
async def takes_every_request(ctx: CheckContext) -> None:
    """Sends requests with every role and block type, and checks the requests afterwards and the responses."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        request = request_from(ctx.case)
        outcome = await send(mounted, request)
        _check_echo(ctx, request, outcome.value)
    if _is_refused(outcome) and await _answers_plainly(ctx):
        ctx.fault("P7", f"complete {outcome}; a plain request is answered", error=outcome.error)


def _is_refused(outcome: Outcome) -> bool:
    return outcome.kind == "raised" and not isinstance(outcome.error, _OTHER_REASONS)


async def _answers_plainly(ctx: CheckContext) -> bool:
    """Whether a fresh provider answers an ordinary first request."""
    async with ctx.mount() as mounted:
        return usable(mounted) and (await complete(mounted, asking("Hello."))).returned


def expect_unchanged(ctx: CheckContext, request: ChatRequest, before: Any) -> None:
    """Report a request that is not what it was."""
    after = snapshot(request)
    if after != before:
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        ctx.fault("P8", f"complete changed the request: {', '.join(changed)} is not what it was")


def check_response(mounted: MountedModule, response: Any) -> None:
    """Report what is wrong with a response by itself, and with the result of parse_tool_calls for it."""
    found = problem_with(response)
    if found is not None:
        mounted.ctx.fault(*found)
        return
    parsed, expected = _parsed(mounted, response), call_tuples(calls_of(response))
    if parsed != expected:
        mounted.ctx.fault(
            "P10", f"parse_tool_calls gave {parsed!r} for a response of its own with the calls {expected!r}"
        )


def _parsed(mounted: MountedModule, response: ChatResponse) -> Any:
    try:
        calls = mounted.instance.parse_tool_calls(response)
    except BaseException as error:  # noqa: BLE001 — foreign code, which is not async here: nothing is cancelled
        return f"{type(error).__name__}: {error}"
    return call_tuples(calls) if isinstance(calls, (list, tuple)) else repr(calls)


def _check_echo(ctx: CheckContext, request: ChatRequest, response: Any) -> None:
    """Report a thinking block that came back with another signature than it was sent with."""
    if not isinstance(response, ChatResponse):
        return
    sent = {
        block.thinking: block.signature
        for message in request.messages
        for block in (message.content if isinstance(message.content, list) else [])
        if isinstance(block, ThinkingBlock) and block.signature
    }
    for block in response.content:
        if isinstance(block, ThinkingBlock) and block.thinking in sent and block.signature != sent[block.thinking]:
            what = f"the thought {block.thinking!r} was sent with the signature {sent[block.thinking]!r}"
            ctx.fault("P6", f"{what} and came back with {block.signature!r}")


@check(
    "P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P14", "P19", "P23",
    kind="behaviour", types=PROVIDER, inputs="provider_dialogues", needs_success=_OF_RESPONSES,
)  # fmt: skip
async def leads_a_conversation(ctx: CheckContext) -> None:
    """Holds conversations of several turns with tool results; checks responses, events, ids and earlier requests."""
    case = ctx.case
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        dialogue = _Dialogue(ctx, mounted)
        request = asking(case["words"][0])
        request.tools = request.tools if case["tools"] else None
        for words in [*case["words"][1:], ""]:
            response = await dialogue.turn(request, case["options"])
            if response is None:
                return
            request = continued(request, response, words)
            if case.get("compacts") and request.messages[-1].role == "user":
                del request.messages[:-1]  # the rest does not fit the budget any more


class _Dialogue:
    """The requests and responses of a conversation so far."""

    def __init__(self, ctx: CheckContext, mounted: MountedModule) -> None:
        self._ctx = ctx
        self._mounted = mounted
        self._ids: set[str] = set()
        self._past: list[tuple[str, Any, Any]] = []

    async def turn(self, request: ChatRequest, options: dict[str, Any]) -> ChatResponse | None:
        """Send a request and check the response; None if there was none."""
        emitted = len(self._mounted.events.get_events("llm:response"))
        before = snapshot(request)
        outcome = await send(self._mounted, request, **copy.deepcopy(options))
        if not outcome.returned:
            await self._check_failure(outcome, options)
            return None
        response = outcome.value
        if not isinstance(response, ChatResponse) or self._has_failed():
            return None
        again = sorted({call.id for call in calls_of(response)} & self._ids)
        if again:
            self._ctx.fault("P9", f"the id {again[0]!r} was given to a call of an earlier answer, too")
        self._ids.update(call.id for call in calls_of(response))
        check_events(self._ctx, response, (await response_events(self._mounted, emitted + 1))[emitted:])
        for what, value, earlier in self._past:
            if snapshot(value) != earlier:
                clause = "P8" if what == "request" else "P14"
                self._ctx.fault(clause, f"an earlier {what} was changed when the next one was asked for")
                break
        self._past += [("request", request, before), ("response", response, snapshot(response))]
        return None if self._has_failed() else response

    def _has_failed(self) -> bool:
        """Whether anything but an event is wrong; a conversation whose events are wrong goes on."""
        return any(fault.clause not in ("P11", "P23") for fault in self._ctx.faults)

    async def _check_failure(self, outcome: Outcome, options: dict[str, Any]) -> None:
        if outcome.kind != "raised":
            return
        turns = len(self._past) // 2 + 1
        if options and not self._past and await _answers_plainly(self._ctx):
            what = f"complete with the keywords {sorted(options)} {outcome}; without them it answers"
            self._ctx.fault("P3", what, error=outcome.error)
            return
        check_error(self._ctx, outcome)
        if not self._past or not isinstance(outcome.error, InvalidRequestError):
            return
        # Refused at a later turn: either so many turns are too many, or the provider refuses its own response.
        async with self._ctx.mount() as fresh:
            plain = [await complete(fresh, asking("Hello.")) for _ in range(turns)]
        if all(each.returned for each in plain):
            what = f"a conversation with the provider's own answers was refused at turn {turns}: {outcome.error}"
            self._ctx.fault("P6", what, error=outcome.error)


@check("P5", kind="behaviour", types=PROVIDER)
async def counts_each_call_alone(ctx: CheckContext) -> None:
    """Sends one request several times; where the content stays the same, the counted tokens must not grow from call to call."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        responses = [(await complete(mounted, asking("Hello."))).value for _ in range(4)]
        models = (await mounted.call(mounted.instance.list_models)).value
    if not all(isinstance(each, ChatResponse) and isinstance(each.usage, Usage) for each in responses):
        return
    _check_cost(ctx, responses[0].usage, models)
    contents = {without_ids(ChatResponse(content=each.content, tool_calls=each.tool_calls)) for each in responses}
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        counts = [getattr(each.usage, key) for each in responses]
        if len(contents) == 1 and all(one < two for one, two in itertools.pairwise(counts)):
            ctx.fault("P5", f"the same request, answered the same way, counts {counts} {key}: they add up over calls")
            return


_ODD_OPTIONS: tuple[dict[str, Any], ...] = (
    {"model": "no-such-model"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"max_output_tokens": 1, "stop": ["e"], "temperature": 1.9},
)
"""Options that not every provider supports."""


def _check_cost(ctx: CheckContext, usage: Usage, models: Any) -> None:
    """Report a cost that is far from what the provider's own price list makes of the tokens; cached tokens may be cheaper."""
    prices = [each.pricing for each in models if each.pricing is not None] if isinstance(models, list) else []
    if usage.cost_usd is None or usage.cache_read_tokens or usage.cache_write_tokens or not prices:
        return
    listed = [
        (usage.input_tokens * each.input_per_million + usage.output_tokens * each.output_per_million) / 1e6
        for each in prices
    ]
    if not min(listed) / 2 <= float(usage.cost_usd) <= max(listed) * 2 + 1e-5:
        what = f"{usage.input_tokens} and {usage.output_tokens} tokens cost {usage.cost_usd}"
        ctx.fault("P5", f"{what}; by the prices of list_models it is {max(listed):.6g}")


@check("P4", "P19", kind="behaviour", types=PROVIDER)
async def says_what_it_cannot_do(ctx: CheckContext) -> None:
    """Sends options that it may not support; it has to return a response or raise an LLMError."""
    if not await _answers_plainly(ctx):
        return
    for options in _ODD_OPTIONS:
        async with ctx.mount() as mounted:
            outcome = await complete(mounted, from_dict(ChatRequest, {**to_dict(asking("Hello.")), **options}))
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
        ctx.fault("P19", f"{type(error).__name__} has retryable {retryable!r}; expected True or False", error=error)


async def response_events(mounted: MountedModule, wanted: int) -> list[dict[str, Any]]:
    """The llm:response events so far; waits a moment for those that are emitted in a task of their own."""
    with anyio.move_on_after(_EVENT_SECONDS):
        while len(mounted.events.get_events("llm:response")) < wanted:  # noqa: ASYNC110 — a recorder has no event to wait for
            await anyio.sleep(0.001)
    return [data for _, data in mounted.events.get_events("llm:response")]


def check_events(ctx: CheckContext, response: ChatResponse, events: list[dict[str, Any]]) -> None:
    """Report an llm:response event that is missing, or lacks the usage of its response."""
    if any(fault.clause in ("P11", "P23") for fault in ctx.faults):
        return  # once is enough
    if not events:
        ctx.fault("P11", "a response was there and llm:response had not been emitted")
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
    assert isinstance(counted, Usage)  # checked before
    cached = [key for key in _CACHE_KEYS if getattr(counted, key) is not None]
    # Providers count cached input tokens in different ways.
    compared = cached if counted.cache_read_tokens or counted.cache_write_tokens else [*cached, *_USAGE_KEYS]
    for key in compared:
        if usage.get(key) != getattr(counted, key):
            what = f"the response has {key}={getattr(counted, key)}; llm:response has {usage.get(key)!r}"
            ctx.fault("P23", what)
            return


_FINISH_REASONS = (None, "tool_calls", "tool_use", "stop", "end_turn")
"""Services end a response with calls in any of these ways."""
_CALL: dict[str, Any] = {"name": "look", "input": {"text": "é", "n": [1, {"deep": None}]}}
_BLOCKS: tuple[dict[str, Any], ...] = (
    {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmF0dXJl"},
    _CALL,
    {"type": "text", "text": "words", "visibility": "internal"},
    {"name": "a.b-c", "input": {}},
    _CALL,
    {"name": "count", "input": {"text": "x", "b": False}},
)
"""Blocks of a response; those without a type are calls, of which two are equal but for their ids."""


@check("P10", kind="behaviour", types=PROVIDER)
async def reads_calls(ctx: CheckContext) -> None:
    """Passes responses with calls between other blocks to parse_tool_calls."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        for reason, blocks in itertools.product(_FINISH_REASONS, (_BLOCKS, _BLOCKS[::-1], _BLOCKS[:1], ())):
            response = _answer(blocks, "toolu_é")
            response.finish_reason = reason
            before = snapshot(response)
            parsed, expected = _parsed(mounted, response), call_tuples(response.tool_calls or [])
            if parsed != expected:
                ended = "" if reason is None else f" with the finish_reason {reason!r}"
                ctx.fault("P10", f"parse_tool_calls gave {parsed!r} for a response{ended}; expected {expected!r}")
            elif snapshot(response) != before:
                ctx.fault("P10", "parse_tool_calls changed the response")
            if ctx.faults:
                return


def _answer(blocks: Sequence[dict[str, Any]], word: str) -> ChatResponse:
    """A response with these blocks; those without a type are calls."""
    content = [
        block if "type" in block else {"type": "tool_call", "id": f"{word}-{number}", **copy.deepcopy(block)}
        for number, block in enumerate(blocks)
    ]
    response = from_dict(ChatResponse, {"content": content})
    response.tool_calls = calls_of(response) or None
    response.usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    return response
