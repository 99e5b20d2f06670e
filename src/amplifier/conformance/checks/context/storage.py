"""Checks of contexts: members, storing, copying, replacing and concurrent calls."""

from __future__ import annotations

import copy
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.checks.context.observed_context import (
    PLENTY,
    ObservedContext,
    interrupt_compactions,
    observe_context,
    spoil,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.conversations import Message, prose, spoken, tool_turn
from amplifier.conformance.oracles.view_rules import difference, holds, marks
from amplifier.conformance.target.mounted import CheckContext

CONTEXT = ("context",)
PATIENCE = 12.0
"""Seconds that a call may take when many run at the same time, on a busy machine."""
_METHODS = ("add_message", "get_messages_for_request", "get_messages", "set_messages", "clear")


@check("C1", kind="structure", types=CONTEXT)
async def has_five_methods(ctx: CheckContext) -> None:
    """Calls each of the five methods with the arguments of the contract; each has to be async."""
    async with ctx.mount() as mounted:
        context = mounted.instance
        if context is None:
            return
        missing = [name for name in _METHODS if not callable(getattr(context, name, None))]
        for name in missing:
            ctx.fault("C1", f"{type(context).__name__} has no method {name!r}")
        message = {"role": "user", "content": "hello"}
        calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
            ("add_message", (message,), {}),
            ("get_messages_for_request", (), {}),
            ("get_messages_for_request", (), {"token_budget": 1000, "provider": None}),
            ("get_messages", (), {}),
            ("set_messages", ([dict(message)],), {}),
            ("clear", (), {}),
        )
        for name, args, kwargs in calls:
            if name in missing:
                continue
            outcome = await mounted.call(getattr(context, name), *args, **kwargs)
            if outcome.is_async is False:
                what = f"it returned {type(outcome.value).__name__} without being awaited"
                ctx.fault("C1", f"{name} is not async: {what}")
            elif isinstance(outcome.error, TypeError) and ctx.location_of(outcome.error) is None:
                ctx.fault("C1", f"{name} cannot be called as the contract demands: {outcome.error}")


@check(
    "C3", "C4", "C6", "C7", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16",
    kind="behaviour", types=CONTEXT, inputs="context_programs",
)  # fmt: skip
async def follows_the_model(ctx: CheckContext) -> None:
    """Runs programs of operations against a plain list, and compares both after every step."""
    async with observe_context(ctx, placed=ctx.case["placed"]) as observed:
        if observed is None:
            return
        program = _Program(observed)
        for number, step in enumerate(ctx.case["steps"]):
            await program.do(step, number)
            observed.expect_untouched()
            if observed.has_faults:
                return


class _Program:
    """Runs the steps of one program and checks the clauses that each may break."""

    def __init__(self, observed: ObservedContext) -> None:
        self._observed = observed
        self._units = 0
        self._said: Message = {"role": "user", "content": "hello"}

    async def do(self, step: dict[str, Any], number: int) -> None:
        await getattr(self, f"_{step['do']}")(step, f"after step {number + 1} ({step['do']})")

    async def _say(self, step: dict[str, Any], when: str) -> None:
        if await self._observed.add_all(self._messages(step)) and await self._observed.compare("C3", when):
            await self._observed.check_unlimited_view()

    _call = _again = _say

    async def _set(self, step: dict[str, Any], when: str) -> None:
        messages = [message for each in step["messages"] for message in self._messages(each)]
        if await self._observed.set(messages) and await self._observed.compare("C14", when):
            await self._observed.check_unlimited_view()

    async def _clear(self, step: dict[str, Any], when: str) -> None:
        if await self._observed.clear() and await self._observed.compare("C14", when):
            view = await self._observed.view(PLENTY)
            if view:
                self._observed.ctx.fault("C14", f"{when}, the view still shows {len(view)} messages")

    async def _spoil(self, step: dict[str, Any], when: str) -> None:
        observed = self._observed
        what = step["what"]
        if what == "given":
            for now, _ in observed.given:
                spoil(now)
            observed.given.clear()
        elif what == "stored":
            spoil(await observed.stored())
        else:
            spoil(await observed.view(PLENTY if what == "view" else 20))
        changed = {"given": "what it was given", "stored": "what get_messages returned"}.get(what, "a view")
        if await observed.compare("C4", f"{when}, when {changed} had been changed by its owner"):
            await observed.check_unlimited_view()

    async def _view(self, step: dict[str, Any], when: str) -> None:
        observed = self._observed
        before = await observed.stored()
        observed.check_view(await observed.view(step["budget"]))
        if not observed.has_faults and await observed.compare("C6", when) and before != await observed.stored():
            observed.ctx.fault("C6", f"{when}, what is stored is not what it was: to ask for a view has changed it")

    async def _burst(self, step: dict[str, Any], when: str) -> None:
        numbers = range(self._units + 1, self._units + 1 + step["count"])
        self._units += step["count"]
        await _add_concurrently(self._observed, [[spoken(number * 10, "user", 4)] for number in numbers], when)

    def _messages(self, step: dict[str, Any]) -> list[Message]:
        self._units += 1
        if step["do"] == "call":
            content = copy.deepcopy(step["content"])
            return tool_turn(self._units * 10, step["calls"], 3, between=step["between"], content=content)
        if step["do"] == "say":
            self._said = {"role": step["role"], "content": step["content"], **step["extra"]}
        return [copy.deepcopy(self._said)]


async def _add_concurrently(observed: ObservedContext, queues: list[list[Message]], when: str) -> None:
    """Add the messages of every queue in a task of its own; all have to be stored, each queue in its order."""
    failed: list[str] = []

    async def feed(queue: list[Message]) -> None:
        for message in queue:
            outcome = await observed.mounted.call(
                observed.context.add_message, copy.deepcopy(message), seconds=PATIENCE
            )
            if not outcome.returned:
                failed.append(f"add_message {outcome}")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for queue in queues:
            group.start_soon(feed, queue)
    if failed:
        observed.ctx.fault("C15", f"{when}, {failed[0]}, called from {len(queues)} tasks at once")
        return
    stored = await observed.stored("C15")
    if stored is None:
        return
    found = difference(stored[: len(observed.expected)], observed.expected)
    tail = stored[len(observed.expected) :]
    wanted = [message for queue in queues for message in queue]
    if found is None and len(tail) != len(wanted):
        found = f"of {len(wanted)} messages added from {len(queues)} tasks at once {len(tail)} are there"
    for queue in queues if found is None else ():
        places = [next((at for at, one in enumerate(tail) if holds(one, message)), -1) for message in queue]
        if -1 in places or places != sorted(places):
            found = "a message added beside others is lost, or comes before one that the same task added earlier"
    if found is not None:
        observed.ctx.fault("C15", f"{when}, {found}")
        return
    observed.expected += copy.deepcopy(tail)


@check("C15", kind="behaviour", types=CONTEXT)
async def takes_many_at_once(ctx: CheckContext) -> None:
    """Requests views and replaces the conversation from several tasks at once; no view and no conversation may be a mixture."""
    for placed in (True, False):
        async with observe_context(ctx, placed=placed) as observed:
            if observed is None:
                return
            interrupt_compactions(observed.mounted)
            if not await observed.add_all([spoken(number * 10, "user", 30) for number in range(60)], clause="C15"):
                return
            await _view_concurrently(observed)
            if not observed.has_faults:
                await _replace_concurrently(observed)
        if ctx.faults or ctx.loaded.config == ctx.loaded.given:
            return


async def _view_concurrently(observed: ObservedContext) -> None:
    """Request views of several sizes in turn and then concurrently: each has to be the same."""
    budgets = (200, 1000, PLENTY, 500)
    alone = [[await observed.view(budget) for budget in budgets] for _ in range(2)]
    together: list[Any] = [None] * len(budgets)

    async def request(number: int) -> None:
        together[number] = await observed.view(budgets[number])

    async with anyio.create_task_group() as group:
        for number in range(len(budgets)):
            group.start_soon(request, number)
    for budget, once, again, beside in zip(budgets, *alone, together, strict=True):
        first, second, third = (marks(view) for view in (once, again, beside))
        if first == second != third and beside is not None:
            what = f"{len(third)} messages instead of the {len(first)} that it shows when asked alone"
            observed.ctx.fault("C15", f"a view for {budget} tokens, asked for beside others, shows {what}")
            return


async def _replace_concurrently(observed: ObservedContext) -> None:
    one = [spoken(100 + number, "user", 5) for number in range(6)]
    other = [spoken(200 + number, "assistant", 5) for number in range(4)]
    async with anyio.create_task_group() as group:
        for messages in (one, other):
            group.start_soon(observed.mounted.call, observed.context.set_messages, copy.deepcopy(messages))
    stored = await observed.stored("C15")
    if stored is None:
        return
    if difference(stored, one) is not None and difference(stored, other) is not None:
        observed.ctx.fault(
            "C15", f"two set_messages at once left {len(stored)} messages, neither the ones nor the others"
        )
        return
    observed.expected = one if difference(stored, one) is None else other
    await observed.add(spoken(300, "user", 5), clause="C15")
    await observed.compare("C15", "after two set_messages at once and an add_message")


@check("C3", kind="behaviour", types=CONTEXT)
async def keeps_a_thousand(ctx: CheckContext) -> None:
    """Stores well over a thousand messages, some very long, by set_messages and by add_message, and counts them."""
    async with observe_context(ctx) as observed:
        if observed is None:
            return
        many = [spoken(number, "user" if number % 2 else "assistant", 4) for number in range(2500)]
        many[7]["content"] = prose(7, 60_000)
        if not await observed.set(many, clause="C3"):
            return
        long = [*tool_turn(2600, 2, 30_000), spoken(2700, "system", 30_000), spoken(2800, "assistant", 30_000)]
        if not await observed.add_all(long):
            return
        started = anyio.current_time()
        for number in range(300):
            if anyio.current_time() - started > 1.0 or not await observed.add(spoken(3000 + number, "user", 4)):
                break
        if not ctx.faults:
            await observed.compare("C3", f"after {len(observed.expected)} messages")


@check("C19", "C3", kind="behaviour", types=CONTEXT)
async def refuses_what_has_no_role(ctx: CheckContext) -> None:
    """Adds a message without a role, which should raise a ValueError and not be stored."""
    async with observe_context(ctx) as observed:
        if observed is None:
            return
        outcome = await observed.mounted.call(observed.context.add_message, {"content": "without a role"})
        if outcome.returned:
            ctx.fault("C19", "a message without a role was accepted")
        elif not isinstance(outcome.error, ValueError):
            ctx.fault("C19", f"a message without a role {outcome}; expected a ValueError", error=outcome.error)
        stored = None if outcome.returned else await observed.stored()
        if stored:
            ctx.fault("C19", "a message without a role was refused, and stored all the same")
        elif stored is not None and await observed.add(spoken(10, "user", 3)):
            await observed.compare("C3", "after a message that was refused")
