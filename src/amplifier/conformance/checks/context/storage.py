"""Checks of contexts: members, storing, copying, replacing and concurrent calls."""

from __future__ import annotations

import copy
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext
from amplifier.conformance.inputs.conversations import Message, mark_of, prose, spoken, tool_turn

from .observed_context import PLENTY, ObservedContext, interrupt_compactions, observe_context, spoil
from .view_rules import difference, holds

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
    """Runs drawn programs of operations against a plain list, and compares both after every step."""
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


def _one_of_everything() -> list[Message]:
    """A conversation with every role and kind of content, and with equal and empty messages."""
    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "sig=="},
        {"type": "text", "text": "m0033 blocks", "visibility": None},
    ]
    return [
        spoken(10, "system", 5),
        {
            "role": "user",
            "content": "a\u2028b\x85c\r\nd é漢字🙂",
            "name": None,
            "metadata": {"n": [1, {"deep": None}], "ok": False},
        },
        *tool_turn(20, 3, 5, between="system"),
        {"role": "assistant", "content": blocks, "cache": {"type": "ephemeral"}},
        {"role": "developer", "content": "m0050 be brief"},
        {"role": "user", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        spoken(60, "user", 5),
        spoken(60, "user", 5),
        *tool_turn(70, 1, 5, content="m0079 I look"),
        spoken(80, "user", 5),
    ]


@check("C3", "C4", "C6", "C7", "C9", "C10", "C11", "C12", "C13", "C14", "C16", kind="behaviour", types=CONTEXT)
async def keeps_one_of_everything(ctx: CheckContext) -> None:
    """Stores a conversation with every role and content in both ways, changes all values it can reach, replaces and clears it."""
    for placed, adds in ((True, True), (True, False), (False, True)):
        async with observe_context(ctx, placed=placed) as observed:
            if observed is None:
                return
            history = _one_of_everything()
            stored = await (observed.add_all(history) if adds else observed.set(history))
            if not stored or not await observed.compare("C3" if adds else "C14", "after storing one of everything"):
                return
            program = _Program(observed)
            steps: list[dict[str, Any]] = [
                {"do": "spoil", "what": what} for what in ("given", "stored", "view", "small view")
            ]
            steps += [{"do": "view", "budget": budget} for budget in (None, 200, 60, 20, 10_000_000)]
            said = {"do": "say", "role": "user", "content": "m0500 next", "extra": {}}
            steps += [{"do": "set", "messages": [said]}, {"do": "set", "messages": []}, said]
            if not ctx.faults:
                await observed.check_unlimited_view()
            for number, step in enumerate(steps[: None if adds else -3]):
                if ctx.faults:
                    return
                await program.do(step, number)
                observed.expect_untouched()
            if not ctx.faults and await observed.set(history):
                await program.do({"do": "clear"}, len(steps))
        if ctx.faults:
            return


@check("C3", "C14", kind="behaviour", types=CONTEXT)
async def keeps_repeated_results(ctx: CheckContext) -> None:
    """Stores two different results under one call id in both ways; both have to be kept, in their order."""
    history = [*tool_turn(20, 1, 5), {"role": "tool", "tool_call_id": "call-20-0", "content": prose(29, 5)}]
    for adds in (True, False):
        async with observe_context(ctx) as observed:
            if observed is None or not await (observed.add_all(history) if adds else observed.set(history)):
                return
            if not await observed.compare("C3" if adds else "C14", "after storing two results of one call"):
                ctx.fill_input({"messages": history})
                return


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
    """Adds from many tasks while others read, compact and replace; every message has to be stored, and no view mixed."""
    for placed in (True, False):
        async with observe_context(ctx, placed=placed) as observed:
            if observed is None:
                return
            interrupt_compactions(observed.mounted)
            await _add_while_reading(observed)
            if not observed.has_faults:
                await _view_concurrently(observed)
            if not observed.has_faults:
                await _replace_concurrently(observed)
        if ctx.faults or ctx.loaded.config == ctx.loaded.given:
            return


async def _add_while_reading(observed: ObservedContext) -> None:
    if not await observed.add_all([spoken(number * 10, "user", 30) for number in range(30)], clause="C15"):
        return
    queues = [[spoken(5000 + lane * 100 + number, "user", 30) for number in range(4)] for lane in range(8)]
    failed: list[str] = []

    async def read() -> None:
        for _ in range(20):
            for outcome in (
                await observed.mounted.call(
                    observed.context.get_messages_for_request, token_budget=300, seconds=PATIENCE
                ),
                await observed.mounted.call(observed.context.get_messages, seconds=PATIENCE),
            ):
                if not outcome.returned:
                    failed.append(str(outcome))
            await anyio.sleep(0.0005)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(read)
        await _add_concurrently(observed, queues, "while others were reading")
    if failed and not observed.has_faults:
        observed.ctx.fault("C15", f"while others read and add: {failed[0]}")
    if not observed.has_faults:
        await observed.compare("C15", "after adding and reading at once")


def _marks(view: Any) -> list[str | None]:
    """The marks of the given messages in a view; messages that the context adds may differ each time."""
    return [mark_of(message) for message in view or () if isinstance(message, dict) and mark_of(message)]


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
        marks = [_marks(view) for view in (once, again, beside)]
        if marks[0] == marks[1] != marks[2] and beside is not None:
            what = f"{len(marks[2])} messages instead of the {len(marks[0])} that it shows when asked alone"
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
