"""What contexts promise when they are cancelled, closed and opened again, and about each other."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CALL_SECONDS, IGNORED_AFTER, MountFailed, Stage
from amplifier.conformance.inputs.conversations import Message, spoken, tool_turn
from amplifier.contracts import ContextManager
from amplifier.testing import cancel_at

from .observed_context import PLENTY, Rehearsal, interrupt_compactions, rehearsal, remounted
from .view_rules import complaints, difference

CONTEXT = ("context",)
_BASE = [spoken(10, "user", 30), *tool_turn(20, 2, 30), spoken(30, "assistant", 30)]
_NEW = spoken(40, "user", 5)
_OTHERS = [spoken(50, "user", 5), spoken(60, "assistant", 5)]

Operation = Callable[[Any], Awaitable[Any]]


# ── cancelled ──


async def _add(context: Any) -> Any:
    return await context.add_message(copy.deepcopy(_NEW))


async def _view(context: Any) -> Any:
    return await context.get_messages_for_request(token_budget=60)


async def _set(context: Any) -> Any:
    return await context.set_messages(copy.deepcopy(_OTHERS))


async def _clear(context: Any) -> Any:
    return await context.clear()


_OPERATIONS: tuple[tuple[str, Operation, list[Message]], ...] = (
    ("add_message", _add, [*_BASE, _NEW]),
    ("get_messages_for_request", _view, _BASE),
    ("set_messages", _set, _OTHERS),
    ("clear", _clear, []),
)
"""Each with what is stored when it has been done."""


@check("C5", "A9", kind="cancellation", types=CONTEXT)
async def keeps_what_it_acknowledged(stage: Stage) -> None:
    """Cancels each operation at each suspension; what was stored before is there, and the operation is done or not."""
    remembers = await _remembers(stage)
    for name, operation, done in _OPERATIONS:
        for k in range(1, stage.points + 1):
            fired = False
            for native in (False, True) if stage.backend == "asyncio" else (False,):
                fired = await _cancelled(stage, name, operation, done, k, native, remembers) or fired
                if stage.faults:
                    return
            if not fired:
                break


async def _remembers(stage: Stage) -> bool:
    """Whether it holds what it held when it is mounted again in the same session."""
    async with rehearsal(stage) as play:
        if play is None or not await play.add(_NEW) or not await remounted(play):
            return False
        return bool(await play.stored())


async def _cancelled(
    stage: Stage, name: str, operation: Operation, done: list[Message], k: int, native: bool, remembers: bool
) -> bool:
    async with rehearsal(stage) as play:
        if play is None:
            return False
        if not (await play.set(_BASE[:-1], clause="C5") and await play.add(_BASE[-1], clause="C5")):
            return False
        interrupt_compactions(play.scene)

        async def run() -> None:
            await operation(play.context)

        with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", f"a cancelled {name}"):
            try:
                trial = await cancel_at(k, run, native=native)
            except Exception:  # noqa: BLE001 — foreign code; what leaves a cancelled call is another check's business
                return False
        if not trial.fired:
            return False
        await _judge(play, name, done, trial.where, remembers)
        return True


async def _judge(play: Rehearsal, name: str, done: list[Message], where: str, remembers: bool) -> None:
    stored = await play.stored("A9")
    if stored is None:
        return
    if difference(stored, _BASE) is None:
        play.expected = copy.deepcopy(_BASE)
    elif difference(stored, done) is None:
        play.expected = copy.deepcopy(done)
    else:
        has_lost = name in ("add_message", "get_messages_for_request") and difference(stored[: len(_BASE)], _BASE)
        what = has_lost or f"{len(stored)} messages are there, neither those from before nor those from after"
        play.stage.fault("C5" if has_lost else "A9", f"{name} was cancelled, and {what}", cancelled_at=where)
        return
    if remembers:
        await _judge_kept(play, name, where)
    for budget in (PLENTY, 60):
        view = None if play.is_broken else await play.view(budget)
        for _, what in () if view is None else complaints(play.expected, view):
            play.stage.fault("A9", f"{name} was cancelled, and afterwards {what}", cancelled_at=where)
    if not play.is_broken and await play.add(spoken(70, "user", 5), clause="A9"):
        await play.compare("A9", f"after a cancelled {name} and an add_message")
        if remembers and not play.is_broken:
            await _judge_kept(play, name, where)


async def _judge_kept(play: Rehearsal, name: str, where: str) -> None:
    """Open it again: it holds what it said it holds."""
    if not await remounted(play):
        play.stage.fault("A9", f"after a cancelled {name} it could not be mounted again", cancelled_at=where)
        return
    stored = await play.stored("A9")
    if stored is None:
        return
    found = difference(stored, play.expected)
    if found is not None:
        has_lost = name != "clear" and name != "set_messages" and difference(stored[: len(_BASE)], _BASE)
        what = f"{name} was cancelled, and after mounting again {found}"
        play.stage.fault("C5" if has_lost else "A9", what, cancelled_at=where)


# ── closed and opened ──


@check("C3", "C14", kind="behaviour", types=CONTEXT)
async def remembers_all_or_nothing(stage: Stage) -> None:
    """Closes and mounts the context again after adding, replacing and clearing; a file must hold what was stored last."""
    history: list[Message] = [
        spoken(10, "system", 4),
        {"role": "user", "content": "a\u2028b\x85c\r\nd é漢字🙂", "metadata": {"n": [1, None]}, "name": None},
        *tool_turn(20, 2, 4),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "sig=="}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": ""},
        *(spoken(100 + number, "user", 3) for number in range(15)),
    ]
    steps: tuple[tuple[str, str, Callable[[Rehearsal], Awaitable[bool]]], ...] = (
        ("adding", "C3", lambda play: _add_all(play, history)),
        ("set_messages", "C14", lambda play: play.set(history[:2])),
        ("adding, then set_messages", "C14", lambda play: _add_then_set(play, history)),
        ("adding, then clear", "C14", lambda play: _add_then_clear(play, history)),
    )
    for name, clause, fill in steps:
        async with rehearsal(stage) as play:
            if play is None or not await fill(play):
                return
            expected = copy.deepcopy(play.expected)
            if not await remounted(play):
                stage.fault(clause, f"after {name} it could not be mounted a second time in the same session")
                return
            stored = await play.stored(clause)
            if stored is None:
                return
            if stored and difference(stored, expected) is not None:
                what = f"closed after {name} and mounted again, {difference(stored, expected)}"
                stage.fault(clause, f"{what}, which is neither everything nor nothing")
                return
            if stored and name == "adding":
                await _clear_what_was_kept(play)
        if stage.faults:
            return


async def _add_all(play: Rehearsal, messages: list[Message]) -> bool:
    return all([await play.add(message) for message in messages])


async def _add_then_set(play: Rehearsal, history: list[Message]) -> bool:
    return await _add_all(play, history) and await play.set(history[5:])


async def _add_then_clear(play: Rehearsal, history: list[Message]) -> bool:
    return await _add_all(play, history) and await play.clear()


async def _clear_what_was_kept(play: Rehearsal) -> None:
    """It remembers; then what was cleared is gone for good, and what is added comes after what was remembered."""
    play.expected = await play.stored()
    more = spoken(80, "user", 4)
    if not (await play.add(more) and await play.compare("C3", "after adding to what it remembered")):
        return
    if await remounted(play) and await play.compare("C3", "mounted a third time") and await play.clear():
        if not await remounted(play):
            return
        stored = await play.stored("C14")
        if stored:
            play.stage.fault("C14", f"cleared, closed and mounted again, it still holds {len(stored)} messages")


# ── beside another one ──


@check("A16", kind="hygiene", types=CONTEXT)
async def keeps_sessions_apart(stage: Stage) -> None:
    """Opens a second session of the same user without settings of its own; it must find and leave nothing of the first."""
    try:
        async with stage.scene(config=stage.loaded.given) as first:
            if not isinstance(first.instance, ContextManager):
                return
            await first.call(first.instance.add_message, spoken(10, "user", 5))
            async with stage.scene(config=stage.loaded.given, beside=first) as second:
                if not isinstance(second.instance, ContextManager):
                    return
                found = await second.call(second.instance.get_messages)
                if found.value:
                    stage.fault("A16", "a new session finds the messages of another one of the same user")
                    return
                await second.call(second.instance.add_message, spoken(20, "user", 5))
                await second.call(second.instance.set_messages, [spoken(30, "user", 5)])
                await second.call(second.instance.clear)
            kept = await first.call(first.instance.get_messages)
            if kept.returned and difference(kept.value, [spoken(10, "user", 5)]) is not None:
                stage.fault("A16", "what a second session of the same user does changes what the first one holds")
    except MountFailed:
        return
