"""Checks of contexts: cancelled operations, mounting again, and two sessions of one user."""

from __future__ import annotations

import copy
from typing import Any

import attrs

from amplifier.conformance.checks.context.observed_context import (
    PLENTY,
    ObservedContext,
    interrupt_compactions,
    observe_context,
    remounted,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.conversations import Message, spoken, tool_turn
from amplifier.conformance.oracles.view_rules import difference, view_violations
from amplifier.conformance.target.calls import reraise_own_cancellation
from amplifier.conformance.target.mounted import CheckContext, MountFailed
from amplifier.contracts import ContextManager
from amplifier.testing import cancel_at

CONTEXT = ("context",)
_BASE = [spoken(10, "user", 30), *tool_turn(20, 2, 30), spoken(30, "assistant", 30)]
_NEW = spoken(40, "user", 5)
_OTHERS = [spoken(50, "user", 5), spoken(60, "assistant", 5)]


@attrs.frozen
class _Operation:
    """A method of contexts, its arguments, and what is stored when it is done."""

    name: str
    args: list[Any]
    done: list[Message]
    options: dict[str, Any] = attrs.field(factory=dict)


_OPERATIONS = (
    _Operation("add_message", [_NEW], [*_BASE, _NEW]),
    _Operation("get_messages_for_request", [], _BASE, {"token_budget": 60}),
    _Operation("set_messages", [_OTHERS], _OTHERS),
    _Operation("clear", [], []),
)


@check("C5", "A9", kind="cancellation", types=CONTEXT)
async def keeps_what_it_acknowledged(ctx: CheckContext) -> None:
    """Cancels each operation at each suspension; earlier messages have to be there, and the operation done or not."""
    remembers = await _remembers(ctx)
    for operation in _OPERATIONS:
        for k in range(1, ctx.points + 1):
            fired = False
            for native in ctx.cancel_modes:
                fired |= await _cancelled(ctx, operation, k, native, remembers)
                if ctx.faults:
                    return
            if not fired:
                break


async def _remembers(ctx: CheckContext) -> bool:
    """Whether it still holds its messages when it is mounted again in the same session."""
    async with observe_context(ctx) as observed:
        if observed is None or not await observed.add(_NEW) or not await remounted(observed):
            return False
        return bool(await observed.stored())


async def _cancelled(ctx: CheckContext, operation: _Operation, k: int, native: bool, remembers: bool) -> bool:
    """Cancel one operation at its k-th suspension and check the context; return whether it suspends so often."""
    async with observe_context(ctx) as observed:
        if observed is None:
            return False
        if not (await observed.set(_BASE[:-1], clause="C5") and await observed.add(_BASE[-1], clause="C5")):
            return False
        interrupt_compactions(observed.mounted)

        async def run() -> None:
            await getattr(observed.context, operation.name)(*copy.deepcopy(operation.args), **operation.options)

        with ctx.alarm(what=f"a cancelled {operation.name}"):
            try:
                trial = await cancel_at(k, run, native=native)
            except BaseException as error:  # noqa: BLE001 — foreign code; another check reports what leaves a cancelled call
                reraise_own_cancellation(error)
                return False
        if not trial.fired:
            return False
        await _check_stored(observed, operation, trial.where, remembers)
        return True


async def _check_stored(observed: ObservedContext, operation: _Operation, where: str, remembers: bool) -> None:
    name, done = operation.name, operation.done
    stored = await observed.stored("A9")
    if stored is None:
        return
    if difference(stored, _BASE) is None:
        observed.expected = copy.deepcopy(_BASE)
    elif difference(stored, done) is None:
        observed.expected = copy.deepcopy(done)
    else:
        has_lost = name in ("add_message", "get_messages_for_request") and difference(stored[: len(_BASE)], _BASE)
        what = has_lost or f"{len(stored)} messages are there, neither those from before nor those from after"
        observed.ctx.fault("C5" if has_lost else "A9", f"{name} was cancelled, and {what}", cancelled_at=where)
        return
    if remembers:
        await _check_remounted(observed, name, where)
    for budget in (PLENTY, 60):
        view = None if observed.has_faults else await observed.view(budget)
        for _, what in () if view is None else view_violations(observed.expected, view):
            observed.ctx.fault("A9", f"{name} was cancelled, and afterwards {what}", cancelled_at=where)
    if not observed.has_faults and await observed.add(spoken(70, "user", 5), clause="A9"):
        await observed.compare("A9", f"after a cancelled {name} and an add_message")
        if remembers and not observed.has_faults:
            await _check_remounted(observed, name, where)


async def _check_remounted(observed: ObservedContext, name: str, where: str) -> None:
    """Mount it again: it has to hold the same messages."""
    if not await remounted(observed):
        observed.ctx.fault("A9", f"after a cancelled {name} it could not be mounted again", cancelled_at=where)
        return
    stored = await observed.stored("A9")
    if stored is None:
        return
    found = difference(stored, observed.expected)
    if found is not None:
        has_lost = name not in ("clear", "set_messages") and difference(stored[: len(_BASE)], _BASE)
        what = f"{name} was cancelled, and after mounting again {found}"
        observed.ctx.fault("C5" if has_lost else "A9", what, cancelled_at=where)


@check("C3", "C14", kind="behaviour", types=CONTEXT)
async def remembers_all_or_nothing(ctx: CheckContext) -> None:
    """Closes and mounts the context again after adding, replacing and clearing; a file has to hold the last state."""
    history: list[Message] = [
        spoken(10, "system", 4),
        {"role": "user", "content": "a\u2028b\x85c\r\nd é漢字🙂", "metadata": {"n": [1, None]}, "name": None},
        *tool_turn(20, 2, 4),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "sig=="}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": ""},
        *(spoken(100 + number, "user", 3) for number in range(15)),
    ]
    steps: tuple[tuple[str, str, list[Message], list[Message] | None], ...] = (
        ("adding", "C3", history, None),
        ("set_messages", "C14", [], history[:2]),
        ("adding, then set_messages", "C14", history, history[5:]),
        ("adding, then clear", "C14", history, []),
    )
    for name, clause, added, replacement in steps:
        async with observe_context(ctx) as observed:
            if observed is None or not await observed.add_all(added):
                return
            if replacement is not None and not await (observed.set(replacement) if replacement else observed.clear()):
                return
            expected = copy.deepcopy(observed.expected)
            if not await remounted(observed):
                ctx.fault(clause, f"after {name} it could not be mounted a second time in the same session")
                return
            stored = await observed.stored(clause)
            if stored is None:
                return
            if stored and difference(stored, expected) is not None:
                what = f"closed after {name} and mounted again, {difference(stored, expected)}"
                ctx.fault(clause, f"{what}, which is neither everything nor nothing")
                return
            if stored and name == "adding":
                await _clear_what_was_kept(observed)
        if ctx.faults:
            return


async def _clear_what_was_kept(observed: ObservedContext) -> None:
    """It keeps its messages; then added ones have to come after the kept ones, and cleared ones must be gone."""
    observed.expected = await observed.stored()
    more = spoken(80, "user", 4)
    if not (await observed.add(more) and await observed.compare("C3", "after adding to what it remembered")):
        return
    if await remounted(observed) and await observed.compare("C3", "mounted a third time") and await observed.clear():
        if not await remounted(observed):
            return
        stored = await observed.stored("C14")
        if stored:
            observed.ctx.fault("C14", f"cleared, closed and mounted again, it still holds {len(stored)} messages")


@check("A16", kind="hygiene", types=CONTEXT)
async def keeps_sessions_apart(ctx: CheckContext) -> None:
    """Opens a second session of the same user without settings; it must neither see nor change the first one's messages."""
    try:
        async with ctx.mount(config=ctx.loaded.given) as first:
            if not isinstance(first.instance, ContextManager):
                return
            await first.call(first.instance.add_message, spoken(10, "user", 5))
            async with ctx.mount(config=ctx.loaded.given, beside=first) as second:
                if not isinstance(second.instance, ContextManager):
                    return
                found = await second.call(second.instance.get_messages)
                if found.value:
                    ctx.fault("A16", "a new session finds the messages of another one of the same user")
                    return
                await second.call(second.instance.add_message, spoken(20, "user", 5))
                await second.call(second.instance.set_messages, [spoken(30, "user", 5)])
                await second.call(second.instance.clear)
            kept = await first.call(first.instance.get_messages)
            if kept.returned and difference(kept.value, [spoken(10, "user", 5)]) is not None:
                ctx.fault("A16", "what a second session of the same user does changes what the first one holds")
    except MountFailed:
        return
