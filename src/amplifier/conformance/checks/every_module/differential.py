"""One oracle that needs no description: the same calls, told under other circumstances, are answered the same.

A telling is a sequence of calls, typical ones and others, in a session of a freshly imported module. It is compared with a plain telling: after a
session that was used, in another time zone, in another locale, on the other backend, in a used instance, and after a cancelled call. Results are
compared as Python writes them, so that 1 and 1.0 differ. A difference counts if it shows each time in the same way.

Two calls at the same time each get what they get when they are made one after the other, in either order. A module may remember, count and refuse; so a result
counts only if both orders give the same, or if it holds the mark of the other call, and only where the module is deterministic.
"""

from __future__ import annotations

import locale
import os
import random
import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from amplifier.conformance.checks.every_module.cancellation import (
    Contents,
    Files,
    all_files,
    cancel_once,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.calls import NEVER, chosen_suspensions, first_difference
from amplifier.conformance.target.calls import Outcome, call_with_deadline, run_virtually
from amplifier.conformance.target.locate import load_anew
from amplifier.conformance.target.mounted import (
    CANCEL_GRACE,
    CheckContext,
    MountedModule,
    MountFailed,
)
from amplifier.conformance.target.process import ProcessState
from amplifier.conformance.target.source import texts_in
from amplifier.conformance.target.use import (
    FOREIGN,
    Operation,
    other_operations,
    retyped_operations,
    schema_of,
    typical_operations,
)
from amplifier.contracts import clauses_for

_ROUNDS = 12
"""How often the typical calls are made in a session before, as shared counters may show late; once by a module that starts processes."""
_TRIALS = 3
"""How often a difference has to show in the same way: results may differ by chance."""
_TEMPORARY_NAME = re.compile(r"0000\d{4}")
"""Names of new temporary files: here they are numbered, elsewhere they are drawn at random."""
_CLOCK = re.compile(r"(\d\d):\d\d(:\d\d)?(\.\d+)?")
_DEEPEST = 8
_LONGEST_TEXT = 20_000
_SHOWN_NUMBER = re.compile(r"\d{9,}(\.\d+)?")


@attrs.frozen
class Answer:
    """What a call gave.

    Attributes:
        text: As Python writes it, without what is the session's own, the minutes of the day and the numbers that count seconds.
        ending: In one word, for a comparison in which values may differ.
        leaves: The text of each part of a value, by its place; without figures about the calls themselves.
    """

    name: str
    given: Any = attrs.field(eq=False)
    text: str
    ending: str = attrs.field(eq=False)
    leaves: dict[str, str] = attrs.field(eq=False, factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the call did what it is for."""
        return self.ending not in ("failed", "did not end") and not self.ending.startswith(
            "raised "
        )


@attrs.frozen
class Scene:
    """Where calls are told.

    Attributes:
        mounted: The module that is called.
        other: The same module in another session of the same user, if there is one.
    """

    mounted: MountedModule
    other: MountedModule | None = None

    async def call(self, operation: Operation) -> Answer:
        """Make one call."""
        return self.answer(operation, await self.mounted.call(operation.run, self.mounted))

    def answer(self, operation: Operation, outcome: Outcome) -> Answer:
        """What a call gave."""
        text = self._text(repr(outcome.value) if outcome.returned else str(outcome))
        leaves = dict(_leaves(outcome.value, "")) if outcome.returned else {"": text}
        leaves = {place: self._text(leaf) for place, leaf in leaves.items()}
        return Answer(operation.name, operation.given, text, _ending(outcome, self.mounted), leaves)

    def _text(self, text: str) -> str:
        text = self.mounted.without_session(text)
        if self.other is not None:  # home and temporary files are the same for both
            for folder in (self.other.directory.parent / "home", self.other.temporary):
                text = text.replace(str(folder), f"<place>/{folder.name}")
            text = text.replace(str(self.other.directory.parent), "<place of another session>")
        return _TEMPORARY_NAME.sub("<new name>", _SHOWN_NUMBER.sub("…", _CLOCK.sub(r"\1h", text)))


_STATISTICS = re.compile(
    r"call|request|attempt|start|hit|miss|success|fail|complet|served|finish|stat|time|elapsed|duration|took|second|_ms|since|"
    r"latency|wait|queue|active|flight|running|concurren|\bage\b|_age|uptime|expires"
)
"""Names of figures about the calls themselves, which may count a call that was started and not completed."""


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, (dict, list, tuple)) and place.count("/") < _DEEPEST:
        if not isinstance(value, dict):
            yield from _leaves(len(value), f"{place}/length")
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(member, f"{place}/{key}")
    elif not (isinstance(value, (int, float)) and _STATISTICS.search(place.lower())):
        yield place, repr(value)


def _ending(outcome: Outcome, mounted: MountedModule) -> str:
    value, kind = outcome.value, mounted.loaded.module_type
    if outcome.kind == "late":
        return "did not end"
    if outcome.error is not None:
        return f"raised {type(outcome.error).__name__}"
    if kind == "resolver":
        return "found nothing" if value is None else f"found {len(value['files'])} files"
    if kind == "hook" and isinstance(value, dict):
        return f"answered {value['action']}"
    return "failed" if isinstance(value, list) and value and value[0] is False else "worked"


_Setting = Callable[[CheckContext], AbstractAsyncContextManager[Scene]]
_Program = Callable[[MountedModule], Sequence[Operation]]


async def _tell(
    ctx: CheckContext, setting: _Setting, program: _Program, trial: int = 0
) -> list[Answer]:
    """The answers of a freshly imported module to a program; that it could not be mounted is an answer, too.

    What a module draws at random is another thing in each trial.
    """
    random.seed(ctx.seed + trial)
    try:
        async with setting(_anew(ctx)) as scene:
            return [await scene.call(each) for each in program(scene.mounted)]
    except MountFailed as failed:
        return [Answer("mount", None, str(failed), str(failed.outcome))]


def _anew(ctx: CheckContext) -> CheckContext:
    """A context for the module as it is when it was just imported."""
    return attrs.evolve(
        ctx.fresh(), loaded=attrs.evolve(load_anew(ctx.loaded), given=ctx.loaded.given)
    )


def _lasting(mounted: MountedModule) -> list[Operation]:
    """The typical operations without those that end a session: all sessions have to be active."""
    return [each for each in typical_operations(mounted) if not each.is_last]


def _once(mounted: MountedModule) -> list[Operation]:
    """Calls with other texts, then the typical ones; of a context these first, for what was cleared shows in the first call."""
    others = [] if mounted.loaded.starts_processes else _others(mounted)
    typical = _lasting(mounted)
    return [*typical, *others] if mounted.loaded.module_type == "context" else [*others, *typical]


def _others(mounted: MountedModule) -> list[Operation]:
    """The typical operations with two other texts."""
    return [*other_operations(mounted), *other_operations(mounted, FOREIGN)]


# ── circumstances ──


@asynccontextmanager
async def _alone(
    ctx: CheckContext, zone: str = "UTC", language: str | None = None
) -> AsyncIterator[Scene]:
    state = ProcessState()
    os.environ["TZ"] = zone
    time.tzset()
    if language is not None:
        locale.setlocale(locale.LC_ALL, language)
    try:
        async with ctx.mount() as mounted:
            yield Scene(mounted)
    finally:
        state.restore()


@asynccontextmanager
async def _after_another(ctx: CheckContext) -> AsyncIterator[Scene]:
    """A second session, while a first one is open that was used before."""
    async with ctx.mount() as first:
        calls = _lasting(first)
        # The first one last, because the last one may clear everything.
        for operation in [*calls * (1 if ctx.loaded.starts_processes else _ROUNDS), *calls[:1]]:
            await first.call(operation.run, first)
        # The same user's, elsewhere; but a context without settings that name a place has to tell sessions apart.
        is_placed = "{directory}" in repr(ctx.loaded.config)
        shares_all = (
            ctx.loaded.module_type == "context"
            and ctx.loaded.config == ctx.loaded.given
            and not is_placed
        )
        async with ctx.mount(beside=first) if shares_all else ctx.mount(neighbour=first) as second:
            yield Scene(second, first)


@asynccontextmanager
async def _used(ctx: CheckContext) -> AsyncIterator[Scene]:
    """A context that was used before, and cleared."""
    async with _alone(ctx) as scene:
        for operation in [*other_operations(scene.mounted), *_lasting(scene.mounted)]:
            await scene.mounted.call(operation.run, scene.mounted)
        yield scene


def _replacing(mounted: MountedModule) -> list[Operation]:
    """The calls that replace everything in a context."""
    return [each for each in _lasting(mounted) if each.name.startswith("set_messages")]


_CIRCUMSTANCES: tuple[tuple[str, str, _Setting, _Program], ...] = (
    ("A16", "because of another session that had been used before,", _after_another, _once),
    ("C14", "when it was used before, and cleared,", _used, _once),
    ("C14", "when it was used before, cleared and replaced,", _used, _replacing),
    ("A25", "in another time zone", partial(_alone, zone="XXX-13:45"), _once),
    ("A25", "in a locale whose encoding is ASCII", partial(_alone, language="C"), _once),
)
"""The clause that a difference breaks, how it is reported, the circumstance, and what is told."""
_NAMED = re.compile(r"local|time.?zone|locale|\btz\b", re.IGNORECASE)


@check("A16", "A25", "C14", kind="hygiene")
async def answers_the_same_elsewhere(ctx: CheckContext) -> None:
    """Tells the same calls after another session that was used, in a used context, in another time zone and in another locale; the answers are those of a new process."""
    own = {clause.id for clause in clauses_for(ctx.loaded.module_type)}  # type: ignore[arg-type]  # a known type
    circumstances = [each for each in _CIRCUMSTANCES if each[0] in own]
    for config in ctx.configs:
        of_config = attrs.evolve(ctx, loaded=attrs.evolve(ctx.loaded, config=config))
        usual = {
            each: await _tell(of_config, _alone, each)
            for each in dict.fromkeys(each[3] for each in circumstances)
        }
        for clause, what, setting, program in circumstances:
            if any(fault.clause == clause for fault in ctx.faults) or (
                clause != "A16" and ctx.loaded.starts_processes
            ):
                continue  # what programs print is theirs
            found = await _difference(of_config, setting, program, usual[program])
            if found is not None and not (clause == "A25" and _NAMED.search(await _described(ctx))):
                here, there = found
                shown = first_difference(here.text, there.text)
                ctx.fault(clause, f"{what} {there.name} gave {shown}", given=there.given)


@check("A25", kind="hygiene")
async def answers_the_same_in_another_process(ctx: CheckContext) -> None:
    """Makes the same calls on asyncio in processes in which texts have other hashes."""
    if "asyncio" not in ctx.loaded.backends or ctx.loaded.starts_processes:
        return
    tellings = [await _told_on_asyncio(ctx, trial) for trial in range(_TRIALS)]
    for usual, *others in zip(*tellings, strict=False):
        is_steady = all(other == usual for other in others)
        ctx.coverage.answers.append(
            (usual.name, usual.given, usual.text[:_LONGEST_TEXT] if is_steady else None)
        )


async def _told_on_asyncio(ctx: CheckContext, trial: int) -> list[Answer]:
    if ctx.backend == "asyncio":
        return await _tell(ctx, _alone, _once, trial)
    other = attrs.evolve(ctx.fresh(), backend="asyncio", abort=None)
    return await anyio.to_thread.run_sync(
        partial(run_virtually, _tell, other, _alone, _once, trial, backend="asyncio")
    )


@check("A16", kind="hygiene")
async def shares_no_state(ctx: CheckContext) -> None:
    """Uses a session; it leaves the globals of the module and of its classes as they were, but for what is kept by session id."""
    if ctx.loaded.starts_processes:
        return
    async with _anew(ctx).mount() as used:
        for operation in _lasting(used):
            await used.call(
                operation.run, used
            )  # what is made at the first use, such as a table, may be made for all
        before = _globals(used)
        for operation in _once(used):
            await used.call(operation.run, used)
            for place, now in _globals(used).items():
                changes = sorted(set(now) ^ set(before.get(place, []))) or now
                if now != before.get(place) and not any(
                    used.session.session_id in each for each in changes
                ):
                    what = (
                        f"{operation.name} in one session changed {place}, which all sessions share"
                    )
                    ctx.fault("A16", f"{what}: {changes[0][:150]}", given=operation.given)
                    return


_CHANGEABLE = (dict, list, set, deque, bytearray)
_PLAIN = (str, bytes, int, float, type(None))


def _globals(mounted: MountedModule) -> dict[str, list[str]]:
    """What the globals of the module's Python modules and classes hold, by name: plain values as Python writes them, others by identity."""
    target = mounted.loaded.target
    top = (
        target.import_name if target.origin == "installed" else target.import_name.partition(".")[0]
    )
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        own = vars(module).values() if name == top or name.startswith(f"{top}.") else ()
        holders: list[Any] = [
            module,
            *(each for each in own if isinstance(each, type) and each.__module__ == name),
        ]
        for holder in holders if own else ():
            for key, value in vars(holder).items():
                if isinstance(value, (*_CHANGEABLE, *_PLAIN)) and not key.startswith("__"):
                    held = value if isinstance(value, _CHANGEABLE) else [value]
                    entries = held.items() if isinstance(held, dict) else ((each,) for each in held)
                    found[f"{holder.__name__}.{key}"] = sorted(
                        ": ".join(map(_written, each)) for each in entries
                    )
    return found


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value).__name__} {id(value)}"


async def _difference(
    ctx: CheckContext, setting: _Setting, program: _Program, usual: list[Answer]
) -> tuple[Answer, Answer] | None:
    """The first answer that is another one in a setting, each time in the same way."""
    other = await _tell(ctx, setting, program)
    for trial in range(1, _TRIALS):
        if other == usual or await _tell(ctx, _alone, program, trial) != usual:
            return None
        if await _tell(ctx, setting, program, trial) != other:
            return None
    return next((pair for pair in zip(usual, other, strict=False) if pair[0] != pair[1]), None)


async def _described(ctx: CheckContext) -> str:
    """What the module states about itself: its documentation, and descriptions and schemas of its tools."""
    async with ctx.fresh().mount() as mounted:
        tools = [
            f"{getattr(each, 'description', '')} {schema_of(each)}"
            for each in mounted.instances.values()
        ]
        docs = [
            str(each.__doc__)
            for each in (ctx.loaded.module, *map(type, mounted.instances.values()))
        ]
    return " ".join([*tools, *docs])


# ── the other backend ──


@check("A18", kind="hygiene")
async def runs_on_both_backends(ctx: CheckContext) -> None:
    """Compares how typical calls end on both backends."""
    if set(ctx.loaded.backends) != {"asyncio", "trio"}:
        return  # it declares its backend, which is all that the clause demands
    if ctx.backend != "trio":  # one comparison is enough
        ctx.coverage.backends.clear()
        return
    ctx.coverage.backends.append("asyncio")
    first = await _ended_differently(ctx)
    if first is not None and first == await _ended_differently(
        ctx
    ):  # what is due to chance does not show twice in the same way
        name, given, here, there = first
        ctx.fault("A18", f"{name} {here} on trio and {there} on asyncio", given=given)


async def _ended_differently(ctx: CheckContext) -> tuple[str, Any, str, str] | None:
    """The first call that ends differently: its name, its input and both endings."""
    other = attrs.evolve(ctx.fresh(), backend="asyncio", abort=None)
    on_trio = await _tell(ctx, _alone, typical_operations)
    on_asyncio = await anyio.to_thread.run_sync(
        partial(run_virtually, _tell, other, _alone, typical_operations, backend="asyncio")
    )
    for here, there in zip(on_trio, on_asyncio, strict=False):
        if here.ending != there.ending:
            return here.name, here.given, here.ending, there.ending
    return None


# ── a used instance ──

_CALLS = 1_500
_MOST_PAIRS = 12
_STALE = {"tool": "T10", "provider": "P14", "hook": "H3"}


@check("T10", "P14", "H3", "R6", kind="behaviour", types=("resolver", *_STALE))
async def answers_the_same_when_used(ctx: CheckContext) -> None:
    """Makes calls in a used instance and in fresh ones: no call gets the answer to another, none changes the answer to an earlier one, and a resolver answers as a fresh one."""
    if ctx.loaded.starts_processes:
        return
    if ctx.loaded.module_type == "resolver":
        await _ask_after_others(ctx)
        return
    await _find_stale_answer(ctx, _STALE[ctx.loaded.module_type])
    if ctx.loaded.module_type == "tool":
        await _find_live_answer(ctx)


def _at(mounted: MountedModule, numbers: Sequence[int]) -> list[Operation]:
    operations = _similar_calls(mounted)
    return [operations[number] for number in numbers]


def _similar_calls(mounted: MountedModule) -> list[Operation]:
    return [*_lasting(mounted), *_others(mounted), *retyped_operations(mounted)]


async def _ask_after_others(ctx: CheckContext) -> None:
    """Report a question that gets another answer after other questions than alone."""
    async with ctx.mount() as mounted:
        order = list(range(len(_lasting(mounted))))
    random.Random(ctx.seed).shuffle(order)
    alone = {number: await _tell(ctx, _alone, partial(_at, numbers=(number,))) for number in order}
    order += reversed(order)
    for number, answer in zip(
        order, await _tell(ctx, _alone, partial(_at, numbers=order)), strict=False
    ):
        if (
            [answer]
            != alone[number]
            == await _tell(ctx, _alone, partial(_at, numbers=(number,)), trial=1)
        ):
            shown = first_difference(alone[number][0].text, answer.text)
            ctx.fault("R6", f"after other questions {answer.name} gave {shown}", given=answer.given)
            return


async def _find_stale_answer(ctx: CheckContext, clause: str) -> None:
    """Report a call that gets exactly what a similar call before it got, and something else in a fresh session."""
    async with ctx.mount() as mounted:
        operations = _similar_calls(mounted)
    pairs = _similar(operations, set(texts_in(ctx.loaded.target)))
    budget = ctx.budget(_CALLS)
    for first, second in pairs[:_MOST_PAIRS]:
        if budget.is_spent():
            return
        tellings = [(first,), (second,), (first, second)]
        (one,), (alone,), (_, after) = [
            await _tell(ctx, _alone, partial(_at, numbers=each)) for each in tellings
        ]
        if (
            after.text == one.text != alone.text
            and alone.ending == one.ending
            and one.ending not in ("failed", "did not end")
        ):
            again = [await _tell(ctx, _alone, partial(_at, numbers=each)) for each in tellings]
            if again == [[one], [alone], [one, after]]:
                shown = first_difference(alone.text, after.text)
                given = {"first": one.given, "then": after.given}
                ctx.fault(
                    clause,
                    f"{after.name} got the answer to the call before it, {shown}",
                    given=given,
                )
                return


async def _find_live_answer(ctx: CheckContext) -> None:
    """Report a result that later calls, of any tool of the module, have changed."""
    async with ctx.mount() as mounted:
        held = []
        for operation in [*_once(mounted), *_lasting(mounted)]:
            outcome = await mounted.call(operation.run, mounted)
            held.append((operation, outcome.value, repr(outcome.value)))
        for operation, value, text in held:
            if repr(value) != text:
                what = f"a result of {operation.name} is changed by later calls: it is {first_difference(text, repr(value))}"
                ctx.fault("T10", what, given=operation.given)
                return


def _similar(operations: list[Operation], named: set[str]) -> list[tuple[int, int]]:
    """Return pairs of calls of the same thing whose inputs are equal but for their types, or differ in one text or number that the module's source does not name, as it does a choice."""
    equal, pairs = [], []
    for first, one in enumerate(operations):
        for second, other in enumerate(operations):
            changes = _changes(one.given, other.given) if one.name == other.name else []
            if len(changes) == 1 and not named.issuperset(changes[0]):
                pairs.append((first, second))
            elif one.name == other.name and not changes and repr(one.given) != repr(other.given):
                equal.append((first, second))
    return [*equal[: _MOST_PAIRS // 2], *pairs]


def _changes(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """Where two inputs differ; two places for what is there only once, or is of another type."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [change for key in one for change in _changes(one[key], other[key])]
    if one == other:
        return []
    is_plain = (
        type(one) is type(other)
        and isinstance(one, (str, int, float))
        and not isinstance(one, bool)
    )
    return [(one, other)] if is_plain else [(None, None), (None, None)]


# ── a cancelled call ──

_LENGTHS = (2, 3, 5, 2, 3, 5)
"""Of the histories that are drawn."""
_HISTORY_CALLS = 6_000
_POINTS = 4


_COMPARED = ("tool", "hook", "provider", "resolver")
"""Types whose typical operations are one call each, which is made or is not."""


@check("A9", "A10", kind="cancellation", needs_success=("A9", "A10"))
async def goes_on_as_if(ctx: CheckContext) -> None:
    """Cancels each call, and one in each of some drawn histories; files and what follows are as if it had been made, or as if it had not."""
    async with ctx.mount() as mounted:
        alone, count = len(_lasting(mounted)), len(_pool(mounted))
    chance, budget = random.Random(ctx.seed), ctx.budget(_HISTORY_CALLS)
    for number in range(alone):
        if budget.is_spent() or await _is_torn(ctx, [number], 0, ctx.points):
            return
    budget = ctx.budget(_CALLS)
    for length in _LENGTHS if count and _is_compared(ctx) else ():
        history = [chance.randrange(count) for _ in range(length)]
        if budget.is_spent() or await _is_torn(ctx, history, chance.randrange(length), _POINTS):
            return


def _is_compared(ctx: CheckContext) -> bool:
    return ctx.loaded.module_type in _COMPARED and not ctx.loaded.starts_processes


def _pool(mounted: MountedModule) -> list[Operation]:
    return (
        [*_lasting(mounted), *other_operations(mounted)]
        if _is_compared(mounted.ctx)
        else _lasting(mounted)
    )


async def _is_torn(ctx: CheckContext, history: Sequence[int], at: int, points: int) -> bool:
    made, new, trial = await _history(ctx, history, at, NEVER)
    left_out, old, _ = await _history(ctx, [*history[:at], *history[at + 1 :]], at, 0)
    files = Files(old, new, new if old == new else (await _history(ctx, history, at, NEVER))[1])
    has_points = trial is not None and (_is_compared(ctx) or old != new)
    async with ctx.mount() as mounted:
        calls = [_pool(mounted)[index] for index in history]
    for k in chosen_suspensions(ctx, trial.suspensions, points) if has_points else ():
        after, contents, cancelled = await _history(ctx, history, at, k)
        if cancelled is None or not cancelled.fired:
            continue
        given = {"calls": [each.given for each in calls], "cancelled": at + 1}
        details = {
            "given": given if len(calls) > 1 else calls[0].given,
            "cancelled_at": cancelled.where,
        }
        problem = files.problem(contents)
        if problem is not None:
            ctx.fault("A10", f"{calls[at].name} was cancelled, and {problem}", **details)
            return True
        halves = [_first_other(after, each) for each in (made, left_out)]
        if None in halves:
            continue
        if [(await _history(ctx, history, at, again))[0] for again in (NEVER, k)] != [made, after]:
            return False  # it is not the same every time
        usual, found = halves[0] or halves[1] or (made[0], after[0])
        if found.ending == "did not end":
            return (
                False  # calls that hang after a cancelled one are found by `survives_cancellation`
            )
        ended = "" if found.text.startswith("raised ") else "gave "
        what = f"{calls[at].name} was cancelled as call {at + 1} of {len(calls)}; after that a call {ended}".rstrip()
        ctx.fault("A9", f"{what} {first_difference(usual.text, found.text)}", **details)
        return True
    return False


def _first_other(after: list[Answer], usual: list[Answer]) -> tuple[Answer, Answer] | None:
    """The first answer of which a part is another one than usual, with the usual one; no text about the calls themselves counts here."""
    for pair in zip(usual, after, strict=True):
        one, other = (
            {
                place: leaf
                for place, leaf in each.leaves.items()
                if not _STATISTICS.search(place.lower())
            }
            for each in pair
        )
        if one != other:
            return pair
    return None


async def _history(
    ctx: CheckContext, history: Sequence[int], at: int, k: int
) -> tuple[list[Answer], Contents, Any]:
    """What the calls of a history answer, one of which is cancelled at its k-th suspension unless k is 0; the files then, and that call."""
    answers, trial = [], None
    async with ctx.fresh().mount() as mounted:
        scene, operations = Scene(mounted), _pool(mounted)
        for number, index in enumerate(history):
            if k and number == at:
                trial = await cancel_once(mounted, operations[index], k)
            else:
                answers.append(await scene.call(operations[index]))
        files = all_files(mounted)
        answers += [await scene.call(each) for each in _lasting(mounted) if _is_compared(ctx)]
    return answers, files, trial


# ── two calls at the same time ──

_MARKS = ("alphamark", "bravomark")
_HEAD_STARTS = (0, 1, 3)
"""Steps of the loop that the first call is ahead."""
_NUMBERS = (3, 8)
_MOST_AT_ONCE = 6
_SECONDS = 3.0
_BUDGET = 2_000
"""Calls of each check in the quick profile."""
_PAUSES = (0.0, 0.013, 0.04)
_CLAUSES = {"tool": "T10", "provider": "P14", "hook": "H3", "resolver": "R6"}


_Run = tuple[Answer, Answer, list[Answer]]
"""The answers to both calls, and what shows afterwards."""


def _pair(mounted: MountedModule, number: int) -> tuple[Operation, Operation] | None:
    """The operations of a pair: the same call with two marks, or two questions."""
    if mounted.loaded.module_type == "resolver":
        one, other = typical_operations(mounted), typical_operations(mounted)[1:]
    else:
        marked = [other_operations(mounted, *each) for each in zip(_MARKS, _NUMBERS, strict=True)]
        one, other = marked if all(marked) else [typical_operations(mounted)] * 2
    return (
        (one[number], other[number]) if number < min(len(one), len(other), _MOST_AT_ONCE) else None
    )


@check(
    "T10", "P14", "H3", "H5", "R6",
    kind="behaviour", types=_CLAUSES, needs_success=("T10", "P14"),
)  # fmt: skip
async def answers_the_same_at_once(ctx: CheckContext) -> None:
    """Makes two calls at the same time, and compares with the same calls one after the other, in both orders."""
    budget, kind = ctx.budget(_BUDGET), ctx.loaded.module_type
    for number in range(1 if ctx.loaded.starts_processes else _MOST_AT_ONCE):
        async with ctx.mount() as mounted:
            pair = _pair(mounted, number)
        if pair is None or budget.is_spent():
            return
        problem = await _disturbance(ctx, number)
        if problem is not None:
            clause = "H5" if "'modify'" in problem else _CLAUSES[kind]
            what = f"two calls at the same time, {pair[0].name}: {problem}"
            ctx.fault(clause, what, given=[each.given for each in pair])
            return


async def _disturbance(ctx: CheckContext, number: int) -> str | None:
    orders = [await _in_turn(ctx, number, swapped) for swapped in (False, True)]
    if ctx.loaded.module_type == "hook" and not all(
        _MARKS[at] in orders[0][:2][at].text for at in range(2)
    ):
        return None  # the results do not show which event they are about
    is_steady = _equal(await _in_turn(ctx, number), orders[0])
    for head_start in _HEAD_STARTS:
        async with ctx.mount() as mounted:
            mounted.suspend_at("llm:request", "llm:response")
            pair = _pair(mounted, number) or ()
            outcomes = await _run_concurrently(mounted, pair, head_start)
            first, second = (
                Scene(mounted).answer(*each) for each in zip(pair, outcomes, strict=True)
            )
            together = first, second, await _state(mounted)
        problem = _wrong_result(orders, together, is_steady) or (
            _wrong_state(orders, together) if is_steady else None
        )
        if ctx.loaded.module_type == "provider":
            problem = problem or _wrong_answer([*orders, together])
        # Whether slower calls show the same: a result may depend on the time or on chance.
        paused = [
            await _in_turn(ctx, number, pause=pause)
            for pause in _PAUSES
            if problem is not None and is_steady
        ]
        if problem is not None and all(_equal(each, orders[0]) for each in paused):
            return problem
    return None


def _equal(one: _Run, other: _Run) -> bool:
    return _same([*one[:2], *one[2]], [*other[:2], *other[2]])


async def _in_turn(
    ctx: CheckContext, number: int, swapped: bool = False, pause: float = 0.0
) -> _Run:
    async with ctx.mount() as mounted:
        pair = _pair(mounted, number) or ()
        answers: dict[int, Answer] = {}
        for index in (1, 0) if swapped else (0, 1):
            await anyio.sleep(pause)
            answers[index] = await _answer(mounted, pair[index])
        return answers[0], answers[1], await _state(mounted)


async def _run_concurrently(
    mounted: MountedModule,
    pair: Sequence[Operation],
    head_start: int,
    *,
    cancel_after: int | None = None,
) -> list[Outcome]:
    """Make both calls at the same time, with so many steps of the loop between the two starts, and cancel the first so many steps later."""
    outcomes = [Outcome(kind="late"), Outcome(kind="late")]
    scopes = [anyio.CancelScope(), anyio.CancelScope()]

    async def run(index: int) -> None:
        with scopes[index]:
            outcomes[index] = await _call(mounted, pair[index])

    with mounted.ctx.watchdog(_SECONDS * 2 + CANCEL_GRACE, "A8", "two calls at once"):
        async with anyio.create_task_group() as group:
            group.start_soon(run, 0)
            for _ in range(head_start):
                await anyio.lowlevel.checkpoint()
            group.start_soon(run, 1)
            if cancel_after is not None:
                for _ in range(cancel_after):
                    await anyio.lowlevel.checkpoint()
                scopes[0].cancel()
    return outcomes


async def _state(mounted: MountedModule) -> list[Answer]:
    """What typical calls of a tool give now, and which ids a provider has given to several calls."""
    if mounted.loaded.module_type == "provider":
        again = sorted({each for each in mounted.call_ids if mounted.call_ids.count(each) > 1})
        text = f"the ids {again} twice"
        return [Answer("ids", None, text, "worked", {"": text})]
    if mounted.loaded.module_type != "tool":
        return []
    return [await _answer(mounted, each) for each in typical_operations(mounted)]


async def _call(mounted: MountedModule, operation: Operation) -> Outcome:
    outcome = await call_with_deadline(operation.run, mounted, seconds=_SECONDS)
    mounted.note_success(outcome)
    return outcome


async def _answer(mounted: MountedModule, operation: Operation) -> Answer:
    return Scene(mounted).answer(operation, await _call(mounted, operation))


def _wrong_result(orders: list[_Run], together: _Run, is_steady: bool) -> str | None:
    is_stateless = _same(orders[0][:2], orders[1][:2])
    for index in range(2):
        got, usual, other = (run[:2][index] for run in (together, *orders))
        if not got.is_good or not usual.is_good:
            continue  # a refusal does not count: it may be busy
        is_swapped = _MARKS[index] not in got.text and _MARKS[1 - index] in got.text
        if is_swapped and all(_MARKS[index] in each.text for each in (usual, other)):
            return f"one got the result of the other, {got.text[:150]}"
        if is_steady and is_stateless and not _same([got], [usual]):
            return f"one got {got.text[:150]}, and {usual.text[:150]} when it was made alone"
    return None


def _same(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Whether answers are the same but for figures about the calls themselves, such as how long they took."""
    return [(each.ending, each.leaves) for each in one] == [
        (each.ending, each.leaves) for each in other
    ]


def _wrong_answer(runs: list[_Run]) -> str | None:
    """What is wrong with answers of a provider, which may neither be busy nor remember what others have asked."""
    if any(_MARKS[1 - index] in run[:2][index].text for run in runs for index in range(2)):
        return "the answer to one holds a word of the other"
    *orders, together = ([each.is_good for each in run[:2]] for run in runs)
    return "one of them failed" if not all(together) and all(map(all, orders)) else None


def _wrong_state(orders: list[_Run], together: _Run) -> str | None:
    results = [*together[:2], *orders[0][:2], *orders[1][:2]]
    if not all(each.is_good for each in results) or any(
        _same(together[2], order[2]) for order in orders
    ):
        return None
    left, usual = next(
        pair
        for pair in zip(together[2], orders[0][2], strict=True)
        if not _same(*([each] for each in pair))
    )
    return f"afterwards it shows {left.text[:150]}, which is what no order of the two leaves ({usual.text[:150]})"


@check("A9", kind="cancellation", types=("tool",), needs_success=("A9",))
async def spares_the_neighbour(ctx: CheckContext) -> None:
    """Makes the same call twice at the same time and cancels the first; the second must return as usual."""
    budget = ctx.budget(_BUDGET)
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)[
            : 1 if ctx.loaded.starts_processes else _MOST_AT_ONCE
        ]
    for operation in operations:
        async with ctx.mount() as mounted:
            if budget.is_spent() or not (await _call(mounted, operation)).returned:
                continue
        for steps in _HEAD_STARTS:
            async with ctx.mount() as mounted:
                _, second = await _run_concurrently(
                    mounted, [operation] * 2, 1, cancel_after=steps + 1
                )
            if not second.returned:
                what = f"two equal calls at the same time, {operation.name}, of which the first was cancelled"
                ctx.fault(
                    "A9", f"{what}: the second {second}", given=operation.given, error=second.error
                )
                return
