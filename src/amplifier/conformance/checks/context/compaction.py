"""Checks of contexts: what compacted views have to contain, and how large they may be.

Contexts count tokens in their own way, so budgets are far too small or far too large for the stored messages.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

from amplifier.conformance.checks.context.storage import PLENTY, ObservedContext, Window, observe_context
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.conversations import (
    Message,
    built,
    mark_of,
    newest_unit,
    prose,
    spoken,
    tokens,
    tool_turn,
)
from amplifier.conformance.oracles.view_rules import is_whole
from amplifier.conformance.target.mounted import CheckContext
from amplifier.errors import ProviderUnavailableError

CONTEXT = ("context",)


@check(
    "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C17",
    kind="behaviour", types=CONTEXT, inputs="long_conversations",
)  # fmt: skip
async def shows_what_fits(ctx: CheckContext) -> None:
    """Requests views of long conversations with budgets for a fraction of them, and checks their content and size."""
    async with observe_context(ctx, placed=ctx.case["placed"]) as observed:
        if observed is None:
            return
        history, budget = _long_conversation(ctx.case)
        # Adding messages one by one to a file takes long.
        is_file = ctx.case["placed"] and ctx.loaded.config != ctx.loaded.given
        if not await _stored(observed, history, "both" if is_file else ctx.case["how"]):
            return
        before = await observed.view(PLENTY)
        view: list[dict[str, Any]] | None = None
        for _ in range(ctx.case["again"]):
            view = await observed.view(budget)
            observed.check_view(view, budget)
            if view is None or ctx.faults:
                return
        _check_events(observed, view)
        if await observed.compare("C6", "after a compacted view"):
            after = await observed.view(PLENTY)
            if is_whole(history, before) and not is_whole(history, after):
                ctx.fault("C6", "a budget for everything, asked for after a small one, no longer shows everything")


def _long_conversation(case: dict[str, Any]) -> tuple[list[Message], int]:
    """The conversation of a case, and a budget for the given number of its units."""
    units = list(itertools.islice(itertools.cycle(case["pattern"]), case["count"]))
    history = [spoken(0, "user", 20), *built(units, first=1)]
    last = len(units) + 1
    newest = spoken(last * 10, "user", case.get("newest", 20))
    history += [newest] if case["ends"] == "user" else tool_turn(last * 10, 2, 10)
    for at in range(5, len(history) - 8, 9) if case["echo"] else ():
        if history[at]["role"] == "user":
            history[at] = {"role": "user", "content": "go on"}  # equal messages must be kept, too
    for number, at in enumerate(sorted(case["systems"])):
        history.insert(at % (len(history) - 3), spoken(9000 + number, "system", 10))
    must = [history[at] for at in newest_unit(history)] + [m for m in history if m["role"] == "system"]
    budget = max(case["units"] * tokens(history) // len(units), 3 * tokens(must) + 100)
    if case["huge"] is not None:
        _enlarge(history, case["huge"], budget)
    return history, budget


def _enlarge(history: list[Message], role: str, budget: int) -> None:
    """Make an older message of a role far larger than the budget: the last one that does not fit into it."""
    taken = 0
    for at in range(len(history) - 1, 0, -1):
        taken += tokens([history[at]])
        if history[at]["role"] == role and taken * 2 > budget and at not in newest_unit(history):
            number = int((mark_of(history[at]) or "m0")[1:])
            history[at]["content"] = prose(number, 12 * budget)
            return


async def _stored(observed: ObservedContext, history: list[Message], how: str) -> bool:
    """Store a conversation by add_message, set_messages or both."""
    at = {"add": 0, "set": len(history), "both": len(history) - 10}[how]
    # A message that set_messages replaces must not count.
    if how != "add" and not (await observed.add(spoken(1, "user", 3)) and await observed.set(history[:at])):
        return False
    return await observed.add_all(history[at:]) and await observed.compare(
        "C3", f"after storing {len(history)} messages"
    )


def _check_events(observed: ObservedContext, view: Any) -> None:
    if is_whole(observed.expected, view):
        return
    for name in ("context:pre_compact", "context:post_compact"):
        emitted = observed.mounted.events.get_events(name)
        if not emitted:
            observed.ctx.fault("C17", f"a view was compacted, and {name} was not emitted")
            return
        missing = [key for key in ("message_count", "token_count") if not isinstance(emitted[-1][1].get(key), int)]
        if missing:
            observed.ctx.fault("C17", f"{name} was emitted without {missing[0]!r}")
            return


@check("C13", kind="behaviour", types=CONTEXT)
async def takes_messages_without_content(ctx: CheckContext) -> None:
    """Requests a small view of a conversation whose newest message has no content; what the view shows of it is not checked."""
    history = [*(spoken(number * 10, "user", 30) for number in range(1, 21)), {"role": "assistant", "content": None}]
    async with observe_context(ctx) as observed:
        if observed is not None and await observed.set(history):
            await observed.view(400)
            ctx.fill_input({"token_budget": 400, "messages": history})


@check("C8", kind="behaviour", types=CONTEXT)
async def counts_blocks(ctx: CheckContext) -> None:
    """Requests small views of conversations whose words are in content blocks: of the user, and of tools' results."""
    said: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": prose(number, 100)}]} for number in range(60)
    ]
    results = [each for number in range(1, 61) for each in tool_turn(number * 10 + 1, 1, 150, blocks=True)]
    for history in (said, results):
        async with observe_context(ctx) as observed:
            if observed is not None and await observed.set(history):
                budget = tokens(history) // 8
                observed.check_view(await observed.view(budget), budget, ("C8",))


@check("C8", kind="behaviour", types=CONTEXT)
async def asks_the_provider(ctx: CheckContext) -> None:
    """Requests views for providers with windows of several sizes, and with an explicit budget beside a large window."""
    for window, output, count, words in (
        (200_000, 150_000, 100, 1500),
        (20_000, 10_000, 80, 500),
        (9_000, 6_000, 80, 200),
    ):
        async with observe_context(ctx) as observed:
            if observed is None:
                return
            if not await observed.set([spoken(number, "user", words) for number in range(count)]):
                return
            # A large window first: the context has to ask for the window anew each time.
            await observed.view(provider=Window(10 * window, output))
            budget = window - output
            observed.check_view(await observed.view(provider=Window(window, output)), budget, ("C7", "C8"))
            if not ctx.faults:
                view = await observed.view(budget // 4, provider=Window(10 * window, output))
                observed.check_view(view, budget // 4, ("C7", "C8"))
        if ctx.faults:
            return
    async with observe_context(ctx) as observed:
        if observed is not None:
            await observed.add_all([spoken(number, "user", 5) for number in range(4)])
            await observed.view(provider=Window())  # a provider need not report its window


@check("C20", kind="behaviour", types=CONTEXT)
async def keeps_its_beginning(ctx: CheckContext) -> None:
    """Requests views of a growing conversation that fits, twice after each message, and of one that does not, twice."""
    history = [spoken(1, "system", 10), *built([{"role": "user", "words": 8}, {"calls": 2, "words": 6}] * 4, first=1)]
    async with observe_context(ctx) as observed:
        if observed is None:
            return
        before: list[Any] = []
        for number, message in enumerate(history, 1):
            if not await observed.add(message):
                return
            view, again = await observed.view(PLENTY), await observed.view(PLENTY)
            if view is None or again is None:
                return
            if view != again:
                ctx.fault("C20", f"two views of the same {number} messages differ")
            elif view[: len(before)] != before:
                ctx.fault(
                    "C20", f"the view of {number} messages does not begin with that of {number - 1}, and both fit"
                )
            if ctx.faults:
                return
            before = view
        small = tokens(history) // 3
        if await observed.view(small) != await observed.view(small):
            ctx.fault("C20", "two compacted views of the same messages differ")


class _Failing(Window):
    """A provider that cannot be asked."""

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise ProviderUnavailableError("this provider is away", provider=self.name)


@check("C21", kind="behaviour", types=CONTEXT)
async def needs_no_summary(ctx: CheckContext) -> None:
    """Requests a view that has to be compacted, for a provider that refuses to answer."""
    async with observe_context(ctx) as observed:
        if observed is None or not await observed.set([spoken(number, "user", 200) for number in range(80)]):
            return
        away = _Failing(9_000, 6_000)
        outcome = await observed.mounted.call(observed.context.get_messages_for_request, provider=away)
        if not outcome.returned:
            ctx.fault(
                "C21", f"get_messages_for_request {outcome}, because the provider does not answer", error=outcome.error
            )
        else:
            await observed.compare("C6", "after a request for which the provider did not answer")


@check("C22", kind="behaviour", types=CONTEXT)
async def keeps_the_request(ctx: CheckContext) -> None:
    """Requests a small view of a long conversation whose newest request is followed by tool calls, with room for all of these."""
    newest = [spoken(800, "user", 60), *tool_turn(810, 2, 20), *tool_turn(850, 1, 20)]
    async with observe_context(ctx) as observed:
        if observed is None or not await observed.set([*(spoken(at, "user", 60) for at in range(60)), *newest]):
            return
        view = await observed.view(4 * tokens(newest))
        if view is not None and not any(message.get("content") == newest[0]["content"] for message in view):
            ctx.fault("C22", "a view with room for the newest request and all after it does not show it word for word")


@check("C18", kind="structure", types=CONTEXT)
async def can_be_configured(ctx: CheckContext) -> None:
    """Reads in the source whether mount uses its configuration."""
    found = ctx.loaded.target.definition(ctx.loaded.target.attribute)
    node = None if found is None else found.node
    if found is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    arguments = [*node.args.posonlyargs, *node.args.args]
    if len(arguments) < 2 or node.args.vararg is not None:
        return
    name = arguments[1].arg
    if not any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node)):
        ctx.fault("C18", "mount reads nothing of its configuration, so no limit can be set", location=found.location)
