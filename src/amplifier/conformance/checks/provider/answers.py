"""What providers promise about answers: shape, usage, calls and their ids, requests left alone, everything accepted.

What they promise about being call_tuples of, listed, mounted and asked at once is in `_provider_conduct`.
"""

from __future__ import annotations

import copy
import inspect
import json
from typing import Any

import anyio

from amplifier.conformance.harness.calls import Outcome
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.time_budget import Budget
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
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
    from_dict,
    to_dict,
)

from .dialogues import (
    asking,
    call_tuples,
    calls_of,
    complete,
    continued,
    one_of_everything,
    problem_with,
    reported_usage,
    request_from,
    snapshot,
)

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
"""Errors that do not blame the kinds of messages in a request."""
_MOMENT = 0.2
_USAGE_KEYS = ("input_tokens", "output_tokens")
_SLOW = 0.3
_CONVERSATION_SECONDS = 1.5
_CACHE_KEYS = ("cache_read_tokens", "cache_write_tokens")


def usable(mounted: MountedModule) -> bool:
    """Whether there is a provider that can be asked."""
    return isinstance(mounted.instance, Provider)


@check("P1", kind="structure", types=PROVIDER)
async def has_five_members(ctx: CheckContext) -> None:
    """Reads the name and calls each of the four methods, looking which of them have to be awaited."""
    async with ctx.mount() as mounted:
        provider = mounted.instance
        if provider is None:
            return
        names = ("get_info", "list_models", "complete", "parse_tool_calls")
        missing = [name for name in names if not callable(getattr(provider, name, None))]
        for method in missing:
            ctx.fault("P1", f"{type(provider).__name__} has no method {method!r}")
        own_name: Any = getattr(provider, "name", None)
        if not isinstance(own_name, str) or not own_name:
            ctx.fault("P1", f"the provider's name is {own_name!r}; expected a text")
        arguments: dict[str, tuple[Any, ...]] = {
            "get_info": (),
            "list_models": (),
            "complete": (asking("Hello."),),
            "parse_tool_calls": (_answer([], "call"),),
        }
        for name, given in arguments.items():
            if name not in missing:
                await _look_at_call(ctx, mounted, name, given)


async def _look_at_call(ctx: CheckContext, mounted: MountedModule, name: str, given: tuple[Any, ...]) -> None:
    awaitable: list[bool] = []

    async def call() -> Any:
        answer = getattr(mounted.instance, name)(*given)
        awaitable.append(inspect.isawaitable(answer))
        return await answer if awaitable[0] else answer

    outcome = await mounted.call(call)
    is_async = name in ("list_models", "complete")
    if awaitable and awaitable[0] is not is_async:
        ctx.fault("P1", f"{name} {'is not' if is_async else 'is'} async; the contract has it the other way round")
    elif isinstance(outcome.error, TypeError) and ctx.location_of(outcome.error) is None:
        ctx.fault("P1", f"{name} cannot be called as the contract says: {outcome.error}")


# ── everything is accepted ──


@check(
    "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P19", kind="behaviour", types=PROVIDER, inputs="provider_requests"
)
async def takes_every_request(ctx: CheckContext) -> None:
    """Sends requests with every role and block type, compares them with what they were, and reads the answers."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        request = request_from(ctx.case)
        before = snapshot(request)
        outcome = await complete(mounted, request)
        expect_untouched(ctx, request, before)
        if outcome.returned:
            judge_answer(ctx, mounted, outcome.value)
            if isinstance(outcome.value, ChatResponse):
                _judge_echo(ctx, request, outcome.value)
            return
    is_refused = outcome.kind == "raised" and not isinstance(outcome.error, _OTHER_REASONS)
    if is_refused and await _answers_plainly(ctx):
        ctx.fault("P7", f"complete {outcome}; a plain request is answered", error=outcome.error)


@check("P4", "P5", "P6", "P7", "P8", "P9", "P10", kind="behaviour", types=PROVIDER)
async def takes_one_of_everything(ctx: CheckContext) -> None:
    """Sends a request for every role and every block type in turn; where a plain one is answered, these must be."""
    started = anyio.current_time()
    if not await _answers_plainly(ctx):
        return
    everything = one_of_everything()
    if anyio.current_time() - started > _SLOW and await _takes_it_all(ctx, everything):
        return
    for name, messages in everything.items():
        async with ctx.mount() as mounted:
            request = request_from({"messages": messages})
            before = snapshot(request)
            outcome = await complete(mounted, request)
            expect_untouched(ctx, request, before)
            if outcome.returned:
                judge_answer(ctx, mounted, outcome.value)
                if isinstance(outcome.value, ChatResponse):
                    _judge_echo(ctx, request, outcome.value)
            elif outcome.kind == "raised" and not isinstance(outcome.error, _OTHER_REASONS):
                what = f"a conversation with {name}: complete {outcome}; a plain request is answered"
                ctx.fault("P7", what, given=messages, error=outcome.error)
        if ctx.faults:
            return


async def _takes_it_all(ctx: CheckContext, everything: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether one conversation with all of it is answered, which saves time with those who take theirs."""
    parts = [json.dumps(messages).replace("toolu_", f"toolu_{at}_") for at, messages in enumerate(everything.values())]
    messages = [message for part in parts for message in json.loads(part)]
    async with ctx.mount() as mounted:
        request = request_from({"messages": messages})
        before = snapshot(request)
        outcome = await complete(mounted, request)
        expect_untouched(ctx, request, before)
        if outcome.returned:
            judge_answer(ctx, mounted, outcome.value)
        return outcome.returned


async def _answers_plainly(ctx: CheckContext) -> bool:
    """Whether a fresh provider answers an ordinary first request."""
    async with ctx.mount() as mounted:
        return usable(mounted) and (await complete(mounted, asking("Hello."))).returned


def expect_untouched(ctx: CheckContext, request: ChatRequest, before: Any) -> None:
    """A request is the caller's."""
    after = snapshot(request)
    if after != before:
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        ctx.fault("P8", f"complete changed the request: {', '.join(changed)} is not what it was")


def judge_answer(ctx: CheckContext, mounted: MountedModule, response: Any) -> None:
    """What an answer must be by itself, and what parse_tool_calls makes of it."""
    found = problem_with(response)
    if found is not None:
        ctx.fault(*found)
        return
    parsed = _parsed(mounted, response)
    expected = call_tuples(calls_of(response))
    if parsed != expected:
        ctx.fault("P10", f"parse_tool_calls gave {parsed!r} for a response of its own with the calls {expected!r}")


def _parsed(mounted: MountedModule, response: ChatResponse) -> Any:
    try:
        calls = mounted.instance.parse_tool_calls(response)
    except Exception as error:  # noqa: BLE001 — foreign code
        return f"{type(error).__name__}: {error}"
    return call_tuples(calls) if isinstance(calls, (list, tuple)) else repr(calls)


def _judge_echo(ctx: CheckContext, request: ChatRequest, response: ChatResponse) -> None:
    """A thought that comes back comes back with its seal."""
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


# ── conversations ──


@check(
    "P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P14", "P19",
    kind="behaviour", types=PROVIDER, inputs="provider_dialogues",
)  # fmt: skip
async def leads_a_conversation(ctx: CheckContext) -> None:
    """Leads conversations of several turns, answering the calls; reads answers, events, ids and earlier requests."""
    await _lead(ctx, ctx.case)


@check("P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P14", "P19", kind="behaviour", types=PROVIDER)
async def leads_usual_conversations(ctx: CheckContext) -> None:
    """Leads the most ordinary conversations: asking for a tool again and again, small talk, and no tools on offer."""
    tool = "Please use a tool."
    for case in (
        {"words": [tool] * 12, "tools": True, "options": {}},
        {"words": ["Hello.", "Hello.", tool, "Thanks."], "tools": True, "options": {"conformance_unknown": 1}},
        {"words": ["Hello.", tool], "tools": False, "options": {}},
    ):
        await _lead(ctx, case)
        ctx.fill_input(case)
        if ctx.faults:
            return


async def _lead(ctx: CheckContext, case: dict[str, Any]) -> None:
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        dialogue = _Dialogue(ctx, mounted)
        request = asking(case["words"][0])
        request.tools = request.tools if case["tools"] else None
        budget = Budget(ctx, _CONVERSATION_SECONDS)
        for words in [*case["words"][1:], ""]:
            response = await dialogue.turn(request, case["options"])
            if response is None or ctx.faults or budget.is_spent():
                return
            request = continued(request, response, words)


class _Dialogue:
    """What was asked and answered so far."""

    def __init__(self, ctx: CheckContext, mounted: MountedModule) -> None:
        self._ctx = ctx
        self._mounted = mounted
        self._ids: list[str] = []
        self._past: list[tuple[str, Any, Any]] = []

    async def turn(self, request: ChatRequest, options: dict[str, Any]) -> ChatResponse | None:
        """Ask, and judge what comes; None if that was not a response."""
        told_before = len(self._mounted.events.get_events("llm:response"))
        before = snapshot(request)
        outcome = await complete(self._mounted, request, **copy.deepcopy(options))
        expect_untouched(self._ctx, request, before)
        if not outcome.returned:
            await self._judge_failure(outcome, request, options)
            return None
        response = outcome.value
        judge_answer(self._ctx, self._mounted, response)
        if not isinstance(response, ChatResponse) or self._ctx.faults:
            return None
        self._judge_ids(response)
        events = (await announcements(self._mounted, told_before + 1))[told_before:]
        judge_events(self._ctx, response, events)
        self._judge_past()
        self._past += [("request", request, before), ("response", response, snapshot(response))]
        return response

    async def _judge_failure(self, outcome: Outcome, request: ChatRequest, options: dict[str, Any]) -> None:
        if outcome.kind != "raised":
            return
        turns = len(self._past) // 2 + 1
        if options and await self._works_without(request):
            what = f"complete with the keywords {sorted(options)} {outcome}; without them it answers"
            self._ctx.fault("P3", what, error=outcome.error)
            return
        check_error(self._ctx, outcome)
        if not self._past or not isinstance(outcome.error, InvalidRequestError):
            return
        # Refused at a later turn. Is it the turn, or what the turn brought back?
        async with self._ctx.mount() as fresh:
            plain = [await complete(fresh, asking("Hello.")) for _ in range(turns)]
        if all(each.returned for each in plain):
            what = f"a conversation with the provider's own answers was refused at turn {turns}: {outcome.error}"
            self._ctx.fault("P6", what, error=outcome.error)

    async def _works_without(self, request: ChatRequest) -> bool:
        """Whether a fresh provider that was asked the same answers this without the keywords."""
        async with self._ctx.mount() as fresh:
            for what, earlier, _ in self._past:
                if what == "request":
                    await complete(fresh, copy.deepcopy(earlier))
            return (await complete(fresh, copy.deepcopy(request))).returned

    def _judge_ids(self, response: ChatResponse) -> None:
        ids = [call.id for call in calls_of(response)]
        again = sorted(set(ids) & set(self._ids))
        if again:
            self._ctx.fault("P9", f"the id {again[0]!r} was given to a call of an earlier answer, too")
        self._ids += ids

    def _judge_past(self) -> None:
        for what, value, before in self._past:
            if snapshot(value) != before:
                clause = "P8" if what == "request" else "P14"
                self._ctx.fault(clause, f"an earlier {what} was changed when the next one was asked for")
                return


_ODD_OPTIONS: tuple[dict[str, Any], ...] = (
    {"model": "no-such-model"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"max_output_tokens": 1, "stop": ["e"], "temperature": 1.9},
)
"""What one provider can do and another cannot."""


@check("P4", "P19", kind="behaviour", types=PROVIDER)
async def says_what_it_cannot_do(ctx: CheckContext) -> None:
    """Asks for a model and a format that may not be there: an answer is as good as an LLMError, nothing else is."""
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
    """What a failed call may raise."""
    error = outcome.error
    if not isinstance(error, LLMError):
        ctx.fault("P19", f"complete {outcome}; expected an LLMError", error=error)
        return
    retryable: Any = error.retryable
    if not isinstance(retryable, bool):
        ctx.fault("P19", f"{type(error).__name__} has retryable {retryable!r}; expected True or False", error=error)


async def announcements(mounted: MountedModule, wanted: int) -> list[dict[str, Any]]:
    """The llm:response events so far; whoever tells in a task of its own gets a moment for it."""
    with anyio.move_on_after(_MOMENT):
        while len(mounted.events.get_events("llm:response")) < wanted:  # noqa: ASYNC110 — a recorder has no event to wait for
            await anyio.sleep(0.001)
    return [data for _, data in mounted.events.get_events("llm:response")]


def judge_events(ctx: CheckContext, response: ChatResponse, events: list[dict[str, Any]]) -> None:
    """Whether one of the events of a call tells the usage of its answer."""
    if not events:
        ctx.fault("P11", "complete returned and llm:response was not emitted")
        return
    usage = reported_usage(events[-1])
    if not isinstance(usage, dict):
        ctx.fault("P11", f"llm:response was emitted with usage {usage!r}; expected a dict")
        return
    for key in _USAGE_KEYS:
        if not isinstance(usage.get(key), int):
            ctx.fault("P11", f"llm:response was emitted with usage {usage!r}, without {key!r}")
            return
    counted = response.usage
    assert isinstance(counted, Usage)  # judged before
    for key in _CACHE_KEYS:
        if getattr(counted, key) is not None and usage.get(key) != getattr(counted, key):
            ctx.fault("P11", f"the response has {key}={getattr(counted, key)}; llm:response says {usage.get(key)!r}")
            return
    if not counted.cache_read_tokens and not counted.cache_write_tokens:
        for key in _USAGE_KEYS:
            if usage[key] != getattr(counted, key):
                ctx.fault("P11", f"the response has {key}={getattr(counted, key)}; llm:response says {usage[key]}")
                return


# ── calls ──


@check("P10", kind="behaviour", types=PROVIDER, inputs="provider_answers")
async def reads_calls(ctx: CheckContext) -> None:
    """Lets parse_tool_calls read answers with any number of calls between other blocks."""
    async with ctx.mount() as mounted:
        if not usable(mounted):
            return
        response = _answer(ctx.case["blocks"], ctx.case["id"])
        before = snapshot(response)
        parsed, expected = _parsed(mounted, response), call_tuples(response.tool_calls or [])
        if parsed != expected:
            ctx.fault("P10", f"parse_tool_calls gave {parsed!r}; expected {expected!r}")
        elif snapshot(response) != before:
            ctx.fault("P10", "parse_tool_calls changed the response")


def _answer(blocks: list[dict[str, Any]], word: str) -> ChatResponse:
    """A response with these blocks; those without a type are calls."""
    content = [
        block if "type" in block else {"type": "tool_call", "id": f"{word}-{number}", **copy.deepcopy(block)}
        for number, block in enumerate(blocks)
    ]
    response = from_dict(ChatResponse, {"content": content})
    calls = [
        ToolCall(id=block.id, name=block.name, arguments=copy.deepcopy(block.input))
        for block in response.content
        if isinstance(block, ToolCallBlock)
    ]
    response.tool_calls = calls or None
    response.usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    return response
