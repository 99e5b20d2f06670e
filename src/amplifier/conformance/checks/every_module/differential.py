"""Check that the same calls under other circumstances give the same results."""

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

# This oracle needs no description of the module. A program of calls is played in a session of a
# freshly imported module: plainly, after a session that was used, in another time zone, in another
# locale, on the other backend, in a used instance, and after a cancelled call. Results are
# compared by their repr, so that 1 and 1.0 differ. A difference counts if it occurs every time in
# the same way.
#
# Two concurrent calls each get the result that they get in sequence, in either order. A module may
# remember, count and refuse. So a difference counts only if both orders give the same result, or if
# the result has the mark of the other call, and only where the module is deterministic.

_ROUNDS = 12
"""Rounds of typical calls in an earlier session, because shared counters may show late."""
_TRIALS = 3
"""How often a difference has to occur in the same way, because results may differ by chance."""
_TEMPORARY_NAME = re.compile(r"0000\d{4}")
"""Names of new temporary files, which the kit numbers."""
_CLOCK = re.compile(r"(\d\d):\d\d(:\d\d)?(\.\d+)?")
_MAX_DEPTH = 8
_MAX_TEXT_LENGTH = 20_000
_SHOWN_NUMBER = re.compile(r"\d{9,}(\.\d+)?")


@attrs.frozen
class Answer:
    """The result of a call, in comparable forms.

    Attributes:
        name: The name of the operation.
        given: Its input.
        text: The repr, without the session's id and folders, minutes of the day and timestamps.
        ending: The outcome in a word, for a comparison in which values may differ.
        leaves: The text of each part of the value by its place, without figures about the calls.
    """

    name: str
    given: Any = attrs.field(eq=False)
    text: str
    ending: str = attrs.field(eq=False)
    leaves: dict[str, str] = attrs.field(eq=False, factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the call succeeded."""
        return self.ending not in ("failed", "did not end") and not self.ending.startswith(
            "raised "
        )


@attrs.frozen
class Scene:
    """The surroundings in which calls are played.

    Attributes:
        mounted: The module that is called.
        other: The same module in another session of the same user, or None.
    """

    mounted: MountedModule
    other: MountedModule | None = None

    async def call(self, operation: Operation) -> Answer:
        """Make one call."""
        return self.answer(operation, await self.mounted.call(operation.run, self.mounted))

    def answer(self, operation: Operation, outcome: Outcome) -> Answer:
        """Convert the outcome of a call to an answer."""
        text = self._text(repr(outcome.value) if outcome.returned else str(outcome))
        leaves = dict(_leaves(outcome.value, "")) if outcome.returned else {"": text}
        leaves = {place: self._text(leaf) for place, leaf in leaves.items()}
        return Answer(operation.name, operation.given, text, _ending(outcome, self.mounted), leaves)

    def _text(self, text: str) -> str:
        text = self.mounted.without_session(text)
        # Both sessions share the home and the temporary files.
        if self.other is not None:
            for folder in (self.other.directory.parent / "home", self.other.temporary):
                text = text.replace(str(folder), f"<place>/{folder.name}")
            text = text.replace(str(self.other.directory.parent), "<place of another session>")
        return _TEMPORARY_NAME.sub("<new name>", _SHOWN_NUMBER.sub("…", _CLOCK.sub(r"\1h", text)))


_STATISTICS = re.compile(
    r"call|request|attempt|start|hit|miss|success|fail|complet|served|finish|stat|time|elapsed|"
    r"duration|took|second|_ms|since|latency|wait|queue|active|flight|running|concurren|\bage\b|"
    r"_age|uptime|expires"
)
"""Names of figures about the calls, which may count a call that was started and not completed."""


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, (dict, list, tuple)) and place.count("/") < _MAX_DEPTH:
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


async def _play(
    ctx: CheckContext, setting: _Setting, program: _Program, trial: int = 0
) -> list[Answer]:
    """Play a program of calls in a freshly imported module and return the answers.

    A failing mount is an answer too. The random numbers of the module differ from trial to trial.
    """
    random.seed(ctx.seed + trial)
    try:
        async with setting(_anew(ctx)) as scene:
            return [await scene.call(operation) for operation in program(scene.mounted)]
    except MountFailed as failed:
        return [Answer("mount", None, str(failed), str(failed.outcome))]


def _anew(ctx: CheckContext) -> CheckContext:
    """Return a context for a freshly imported copy of the module."""
    return attrs.evolve(
        ctx.fresh(), loaded=attrs.evolve(load_anew(ctx.loaded), given=ctx.loaded.given)
    )


def _lasting(mounted: MountedModule) -> list[Operation]:
    """Return the typical operations without those that end a session, which has to stay active."""
    return [operation for operation in typical_operations(mounted) if not operation.is_last]


def _once(mounted: MountedModule) -> list[Operation]:
    """Return operations with other texts, then the typical ones.

    A context gets the typical ones first, because leftovers of a clear show in the first call.
    """
    others = [] if mounted.loaded.starts_processes else _others(mounted)
    typical = _lasting(mounted)
    return [*typical, *others] if mounted.loaded.module_type == "context" else [*others, *typical]


def _others(mounted: MountedModule) -> list[Operation]:
    """Return the typical operations with two other texts."""
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
    """Open a second session while a first one that was used is open."""
    async with ctx.mount() as first:
        calls = _lasting(first)
        # The first operation is repeated, because the last one may clear everything.
        for operation in [*calls * (1 if ctx.loaded.starts_processes else _ROUNDS), *calls[:1]]:
            await first.call(operation.run, first)
        # A session of the same user in another folder. A context whose settings name no folder has
        # to separate even sessions in the same folder.
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
    """Open a session and use its context, which the typical operations clear."""
    async with _alone(ctx) as scene:
        for operation in [*other_operations(scene.mounted), *_lasting(scene.mounted)]:
            await scene.mounted.call(operation.run, scene.mounted)
        yield scene


def _replacing(mounted: MountedModule) -> list[Operation]:
    """Return the operations that replace everything in a context."""
    return [
        operation for operation in _lasting(mounted) if operation.name.startswith("set_messages")
    ]


_CIRCUMSTANCES: tuple[tuple[str, str, _Setting, _Program], ...] = (
    ("A16", "because of another session that had been used before,", _after_another, _once),
    ("C14", "when it was used before, and cleared,", _used, _once),
    ("C14", "when it was used before, cleared and replaced,", _used, _replacing),
    ("A25", "in another time zone", partial(_alone, zone="XXX-13:45"), _once),
    ("A25", "in a locale whose encoding is ASCII", partial(_alone, language="C"), _once),
)
"""The violated clause, the circumstance in words and as a function, and the program of calls."""
_NAMED = re.compile(r"local|time.?zone|locale|\btz\b", re.IGNORECASE)


@check("A16", "A25", "C14", kind="hygiene")
async def answers_the_same_elsewhere(ctx: CheckContext) -> None:
    """Make the same calls next to a used session, in a used context, time zone and locale."""
    # The type was checked when the module was loaded.
    own = {clause.id for clause in clauses_for(ctx.loaded.module_type)}  # type: ignore[arg-type]
    circumstances = [entry for entry in _CIRCUMSTANCES if entry[0] in own]
    for config in ctx.configs:
        of_config = attrs.evolve(ctx, loaded=attrs.evolve(ctx.loaded, config=config))
        usual = {
            program: await _play(of_config, _alone, program)
            for program in dict.fromkeys(entry[3] for entry in circumstances)
        }
        for clause, what, setting, program in circumstances:
            # The output of programs is not the module's.
            if any(fault.clause == clause for fault in ctx.faults) or (
                clause != "A16" and ctx.loaded.starts_processes
            ):
                continue
            pair = await _difference(of_config, setting, program, usual[program])
            if pair is not None and not (clause == "A25" and _NAMED.search(await _described(ctx))):
                here, there = pair
                shown = first_difference(here.text, there.text)
                ctx.fault(clause, f"{what} {there.name} gave {shown}", given=there.given)


@check("A25", kind="hygiene")
async def answers_the_same_in_another_process(ctx: CheckContext) -> None:
    """Make the same calls on asyncio in processes with different hashes of texts."""
    if "asyncio" not in ctx.loaded.backends or ctx.loaded.starts_processes:
        return
    runs = [await _play_on_asyncio(ctx, trial) for trial in range(_TRIALS)]
    for usual, *others in zip(*runs, strict=False):
        is_steady = all(other == usual for other in others)
        ctx.coverage.answers.append(
            (usual.name, usual.given, usual.text[:_MAX_TEXT_LENGTH] if is_steady else None)
        )


async def _play_on_asyncio(ctx: CheckContext, trial: int) -> list[Answer]:
    if ctx.backend == "asyncio":
        return await _play(ctx, _alone, _once, trial)
    other = attrs.evolve(ctx.fresh(), backend="asyncio", abort=None)
    return await anyio.to_thread.run_sync(
        partial(run_virtually, _play, other, _alone, _once, trial, backend="asyncio")
    )


@check("A16", kind="hygiene")
async def shares_no_state(ctx: CheckContext) -> None:
    """Use a session, and compare the module's globals and classes before and after."""
    if ctx.loaded.starts_processes:
        return
    async with _anew(ctx).mount() as used:
        # Anything that the first use creates, such as a table, may be shared by all sessions.
        for operation in _lasting(used):
            await used.call(operation.run, used)
        before = _globals(used)
        for operation in _once(used):
            await used.call(operation.run, used)
            for place, now in _globals(used).items():
                changes = sorted(set(now) ^ set(before.get(place, []))) or now
                if now != before.get(place) and not any(
                    used.session.session_id in change for change in changes
                ):
                    what = (
                        f"{operation.name} in one session changed {place}, which all sessions share"
                    )
                    ctx.fault("A16", f"{what}: {changes[0][:150]}", given=operation.given)
                    return


_CHANGEABLE = (dict, list, set, deque, bytearray)
_PLAIN = (str, bytes, int, float, type(None))


def _globals(mounted: MountedModule) -> dict[str, list[str]]:
    """Read the globals of the module's Python modules and classes, by name.

    Plain values are read by their repr, others by identity.
    """
    target = mounted.loaded.target
    top = (
        target.import_name if target.origin == "installed" else target.import_name.partition(".")[0]
    )
    contents: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        own = vars(module).values() if name == top or name.startswith(f"{top}.") else ()
        holders: list[Any] = [
            module,
            *(value for value in own if isinstance(value, type) and value.__module__ == name),
        ]
        for holder in holders if own else ():
            for key, value in vars(holder).items():
                if isinstance(value, (*_CHANGEABLE, *_PLAIN)) and not key.startswith("__"):
                    held = value if isinstance(value, _CHANGEABLE) else [value]
                    entries = held.items() if isinstance(held, dict) else ((item,) for item in held)
                    contents[f"{holder.__name__}.{key}"] = sorted(
                        ": ".join(map(_written, entry)) for entry in entries
                    )
    return contents


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value).__name__} {id(value)}"


async def _difference(
    ctx: CheckContext, setting: _Setting, program: _Program, usual: list[Answer]
) -> tuple[Answer, Answer] | None:
    """Return the first pair of answers that differ in a setting, every time in the same way."""
    other = await _play(ctx, setting, program)
    for trial in range(1, _TRIALS):
        if other == usual or await _play(ctx, _alone, program, trial) != usual:
            return None
        if await _play(ctx, setting, program, trial) != other:
            return None
    return next((pair for pair in zip(usual, other, strict=False) if pair[0] != pair[1]), None)


async def _described(ctx: CheckContext) -> str:
    """Return the module's own documentation, and the descriptions and schemas of its tools."""
    async with ctx.fresh().mount() as mounted:
        tools = [
            f"{getattr(instance, 'description', '')} {schema_of(instance)}"
            for instance in mounted.instances.values()
        ]
        docs = [
            str(documented.__doc__)
            for documented in (ctx.loaded.module, *map(type, mounted.instances.values()))
        ]
    return " ".join([*tools, *docs])


# ── the other backend ──


@check("A18", kind="hygiene")
async def runs_on_both_backends(ctx: CheckContext) -> None:
    """Compare the endings of typical calls on both backends."""
    # A module that declares its backend fulfils the clause.
    if set(ctx.loaded.backends) != {"asyncio", "trio"}:
        return
    # One comparison is enough.
    if ctx.backend != "trio":
        ctx.coverage.backends.clear()
        return
    ctx.coverage.backends.append("asyncio")
    first = await _ended_differently(ctx)
    # A difference by chance doesn't occur twice in the same way.
    if first is not None and first == await _ended_differently(ctx):
        name, given, here, there = first
        ctx.fault("A18", f"{name} {here} on trio and {there} on asyncio", given=given)


async def _ended_differently(ctx: CheckContext) -> tuple[str, Any, str, str] | None:
    """Return name, input and both endings of the first call that ends differently."""
    other = attrs.evolve(ctx.fresh(), backend="asyncio", abort=None)
    on_trio = await _play(ctx, _alone, typical_operations)
    on_asyncio = await anyio.to_thread.run_sync(
        partial(run_virtually, _play, other, _alone, typical_operations, backend="asyncio")
    )
    for here, there in zip(on_trio, on_asyncio, strict=False):
        if here.ending != there.ending:
            return here.name, here.given, here.ending, there.ending
    return None


# ── a used instance ──

_CALLS = 1_500
_MAX_PAIRS = 12
_STALE = {"tool": "T10", "provider": "P14", "hook": "H3"}


@check("T10", "P14", "H3", "R6", kind="behaviour", types=("resolver", *_STALE))
async def answers_the_same_when_used(ctx: CheckContext) -> None:
    """Make calls in a used instance and in fresh ones, whose answers must not mix or change."""
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
    """Report a question that is answered differently after other questions than it is alone."""
    async with ctx.mount() as mounted:
        order = list(range(len(_lasting(mounted))))
    random.Random(ctx.seed).shuffle(order)
    alone = {number: await _play(ctx, _alone, partial(_at, numbers=(number,))) for number in order}
    order += reversed(order)
    for number, answer in zip(
        order, await _play(ctx, _alone, partial(_at, numbers=order)), strict=False
    ):
        if (
            [answer]
            != alone[number]
            == await _play(ctx, _alone, partial(_at, numbers=(number,)), trial=1)
        ):
            shown = first_difference(alone[number][0].text, answer.text)
            ctx.fault("R6", f"after other questions {answer.name} gave {shown}", given=answer.given)
            return


async def _find_stale_answer(ctx: CheckContext, clause: str) -> None:
    """Report a call that, unlike in a fresh session, gets the result of a similar earlier call."""
    async with ctx.mount() as mounted:
        operations = _similar_calls(mounted)
    pairs = _similar(operations, set(texts_in(ctx.loaded.target)))
    budget = ctx.budget(_CALLS)
    for first, second in pairs[:_MAX_PAIRS]:
        if budget.is_spent():
            return
        programs = [(first,), (second,), (first, second)]
        (one,), (alone,), (_, after) = [
            await _play(ctx, _alone, partial(_at, numbers=numbers)) for numbers in programs
        ]
        if (
            after.text == one.text != alone.text
            and alone.ending == one.ending
            and one.ending not in ("failed", "did not end")
        ):
            again = [
                await _play(ctx, _alone, partial(_at, numbers=numbers)) for numbers in programs
            ]
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
    """Report a result that later calls of the module's tools have changed."""
    async with ctx.mount() as mounted:
        held = []
        for operation in [*_once(mounted), *_lasting(mounted)]:
            outcome = await mounted.call(operation.run, mounted)
            held.append((operation, outcome.value, repr(outcome.value)))
        for operation, value, text in held:
            if repr(value) != text:
                shown = first_difference(text, repr(value))
                what = f"a result of {operation.name} is changed by later calls: it is {shown}"
                ctx.fault("T10", what, given=operation.given)
                return


def _similar(operations: list[Operation], named: set[str]) -> list[tuple[int, int]]:
    """Return pairs of calls of the same operation with similar inputs.

    They are equal except for their types, or differ in one text or number that the module's
    source does not name, as it would name a choice.
    """
    equal, pairs = [], []
    for first, one in enumerate(operations):
        for second, other in enumerate(operations):
            changes = _changes(one.given, other.given) if one.name == other.name else []
            if len(changes) == 1 and not named.issuperset(changes[0]):
                pairs.append((first, second))
            elif one.name == other.name and not changes and repr(one.given) != repr(other.given):
                equal.append((first, second))
    return [*equal[: _MAX_PAIRS // 2], *pairs]


def _changes(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """Return the differing leaves of two inputs.

    A part that only one of them has, or with different types, counts twice.
    """
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
"""Lengths of the histories that are drawn."""
_HISTORY_CALLS = 6_000
_POINTS = 4


_COMPARED = ("tool", "hook", "provider", "resolver")
"""Types whose typical operations are one call each, which has an effect as a whole or none."""


@check("A9", "A10", kind="cancellation", needs_success=("A9", "A10"))
async def goes_on_as_if(ctx: CheckContext) -> None:
    """Cancel calls, alone and in drawn histories, and compare later results with both outcomes."""
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
        given = {"calls": [call.given for call in calls], "cancelled": at + 1}
        details = {
            "given": given if len(calls) > 1 else calls[0].given,
            "cancelled_at": cancelled.where,
        }
        problem = files.problem(contents)
        if problem is not None:
            ctx.fault("A10", f"{calls[at].name} was cancelled, and {problem}", **details)
            return True
        halves = [_first_other(after, answers) for answers in (made, left_out)]
        if None in halves:
            continue
        # The result is not the same every time.
        if [(await _history(ctx, history, at, again))[0] for again in (NEVER, k)] != [made, after]:
            return False
        usual, actual = halves[0] or halves[1] or (made[0], after[0])
        # `survives_cancellation` finds calls that hang after a cancelled one.
        if actual.ending == "did not end":
            return False
        ended = "" if actual.text.startswith("raised ") else "gave "
        what = f"{calls[at].name} was cancelled as call {at + 1} of {len(calls)}; after that a call"
        shown = first_difference(usual.text, actual.text)
        ctx.fault("A9", f"{what} {ended}{shown}", **details)
        return True
    return False


def _first_other(after: list[Answer], usual: list[Answer]) -> tuple[Answer, Answer] | None:
    """Return the first pair of answers with different parts, the usual one first.

    Texts about the calls themselves don't count.
    """
    for pair in zip(usual, after, strict=True):
        one, other = (
            {
                place: leaf
                for place, leaf in answer.leaves.items()
                if not _STATISTICS.search(place.lower())
            }
            for answer in pair
        )
        if one != other:
            return pair
    return None


async def _history(
    ctx: CheckContext, history: Sequence[int], at: int, k: int
) -> tuple[list[Answer], Contents, Any]:
    """Play a history, and cancel the call at `at` at its k-th suspension unless k is 0.

    Return the answers, the files after the history, and the trial of the cancelled call.
    """
    answers, trial = [], None
    async with ctx.fresh().mount() as mounted:
        scene, operations = Scene(mounted), _pool(mounted)
        for number, index in enumerate(history):
            if k and number == at:
                trial = await cancel_once(mounted, operations[index], k)
            else:
                answers.append(await scene.call(operations[index]))
        files = all_files(mounted)
        later = _lasting(mounted) if _is_compared(ctx) else []
        answers += [await scene.call(operation) for operation in later]
    return answers, files, trial


# ── concurrent calls ──

_MARKS = ("alphamark", "bravomark")
_HEAD_STARTS = (0, 1, 3)
"""Steps of the loop by which the first call starts before the second."""
_NUMBERS = (3, 8)
_MAX_CONCURRENT = 6
_PAIR_SECONDS = 3.0
_BUDGET = 2_000
"""Number of calls for each check in the quick profile."""
_PAUSES = (0.0, 0.013, 0.04)
_CLAUSES = {"tool": "T10", "provider": "P14", "hook": "H3", "resolver": "R6"}


_Run = tuple[Answer, Answer, list[Answer]]
"""The answers of both calls, and the state afterwards."""


def _pair(mounted: MountedModule, number: int) -> tuple[Operation, Operation] | None:
    """Return a pair of operations: the same call with two marks, or two questions."""
    if mounted.loaded.module_type == "resolver":
        one, other = typical_operations(mounted), typical_operations(mounted)[1:]
    else:
        marked = [other_operations(mounted, *mark) for mark in zip(_MARKS, _NUMBERS, strict=True)]
        one, other = marked if all(marked) else [typical_operations(mounted)] * 2
    return (
        (one[number], other[number])
        if number < min(len(one), len(other), _MAX_CONCURRENT)
        else None
    )


@check(
    "T10", "P14", "H3", "H5", "R6",
    kind="behaviour", types=_CLAUSES, needs_success=("T10", "P14"),
)  # fmt: skip
async def answers_the_same_at_once(ctx: CheckContext) -> None:
    """Make two concurrent calls, and compare them with both orders of sequential calls."""
    budget, kind = ctx.budget(_BUDGET), ctx.loaded.module_type
    for number in range(1 if ctx.loaded.starts_processes else _MAX_CONCURRENT):
        async with ctx.mount() as mounted:
            pair = _pair(mounted, number)
        if pair is None or budget.is_spent():
            return
        problem = await _disturbance(ctx, number)
        if problem is not None:
            clause = "H5" if "'modify'" in problem else _CLAUSES[kind]
            what = f"two calls at the same time, {pair[0].name}: {problem}"
            ctx.fault(clause, what, given=[operation.given for operation in pair])
            return


async def _disturbance(ctx: CheckContext, number: int) -> str | None:
    orders = [await _in_turn(ctx, number, swapped) for swapped in (False, True)]
    # The results of a hook may not show their event.
    if ctx.loaded.module_type == "hook" and not all(
        _MARKS[at] in orders[0][:2][at].text for at in range(2)
    ):
        return None
    is_steady = _equal(await _in_turn(ctx, number), orders[0])
    for head_start in _HEAD_STARTS:
        async with ctx.mount() as mounted:
            mounted.suspend_at("llm:request", "llm:response")
            pair = _pair(mounted, number) or ()
            outcomes = await _run_concurrently(mounted, pair, head_start)
            first, second = (
                Scene(mounted).answer(*ended) for ended in zip(pair, outcomes, strict=True)
            )
            together = first, second, await _state(mounted)
        problem = _wrong_result(orders, together, is_steady) or (
            _wrong_state(orders, together) if is_steady else None
        )
        if ctx.loaded.module_type == "provider":
            problem = problem or _wrong_answer([*orders, together])
        # A result may depend on the time or on chance, in which case slower calls differ too.
        paused = [
            await _in_turn(ctx, number, pause=pause)
            for pause in _PAUSES
            if problem is not None and is_steady
        ]
        if problem is not None and all(_equal(run, orders[0]) for run in paused):
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
    """Make both calls concurrently.

    Args:
        mounted: The module.
        pair: The calls.
        head_start: Steps of the loop between their starts.
        cancel_after: Steps after which to cancel the first call, or None to let it run.
    """
    outcomes = [Outcome(kind="late"), Outcome(kind="late")]
    scopes = [anyio.CancelScope(), anyio.CancelScope()]

    async def run(index: int) -> None:
        with scopes[index]:
            outcomes[index] = await _call(mounted, pair[index])

    with mounted.ctx.watchdog(_PAIR_SECONDS * 2 + CANCEL_GRACE, "A8", "two calls at once"):
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
    """Return a tool's answers to typical calls, or the ids that a provider has used twice."""
    if mounted.loaded.module_type == "provider":
        ids = mounted.call_ids
        again = sorted({call_id for call_id in ids if ids.count(call_id) > 1})
        text = f"the ids {again} twice"
        return [Answer("ids", None, text, "worked", {"": text})]
    if mounted.loaded.module_type != "tool":
        return []
    return [await _answer(mounted, operation) for operation in typical_operations(mounted)]


async def _call(mounted: MountedModule, operation: Operation) -> Outcome:
    outcome = await call_with_deadline(operation.run, mounted, seconds=_PAIR_SECONDS)
    mounted.note_success(outcome)
    return outcome


async def _answer(mounted: MountedModule, operation: Operation) -> Answer:
    return Scene(mounted).answer(operation, await _call(mounted, operation))


def _wrong_result(orders: list[_Run], together: _Run, is_steady: bool) -> str | None:
    is_stateless = _same(orders[0][:2], orders[1][:2])
    for index in range(2):
        got, usual, other = (run[:2][index] for run in (together, *orders))
        # A refusal doesn't count, because the module may be busy.
        if not got.is_good or not usual.is_good:
            continue
        is_swapped = _MARKS[index] not in got.text and _MARKS[1 - index] in got.text
        if is_swapped and all(_MARKS[index] in answer.text for answer in (usual, other)):
            return f"one got the result of the other, {got.text[:150]}"
        if is_steady and is_stateless and not _same([got], [usual]):
            return f"one got {got.text[:150]}, and {usual.text[:150]} when it was made alone"
    return None


def _same(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Return whether answers are the same except for figures about the calls, such as times."""
    return [(answer.ending, answer.leaves) for answer in one] == [
        (answer.ending, answer.leaves) for answer in other
    ]


def _wrong_answer(runs: list[_Run]) -> str | None:
    """Return the fault of a provider's answers, which may neither be busy nor remember others."""
    if any(_MARKS[1 - index] in run[:2][index].text for run in runs for index in range(2)):
        return "the answer to one holds a word of the other"
    *orders, together = ([answer.is_good for answer in run[:2]] for run in runs)
    return "one of them failed" if not all(together) and all(map(all, orders)) else None


def _wrong_state(orders: list[_Run], together: _Run) -> str | None:
    results = [*together[:2], *orders[0][:2], *orders[1][:2]]
    if not all(answer.is_good for answer in results) or any(
        _same(together[2], order[2]) for order in orders
    ):
        return None
    left, usual = next(
        pair
        for pair in zip(together[2], orders[0][2], strict=True)
        if not _same(*([answer] for answer in pair))
    )
    return (
        f"afterwards it shows {left.text[:150]}, "
        f"which no order of the two leaves ({usual.text[:150]})"
    )


@check("A9", kind="cancellation", types=("tool",), needs_success=("A9",))
async def spares_the_neighbour(ctx: CheckContext) -> None:
    """Make the same call twice concurrently and cancel the first. The second returns as usual."""
    budget = ctx.budget(_BUDGET)
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)[
            : 1 if ctx.loaded.starts_processes else _MAX_CONCURRENT
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
                what = (
                    f"two equal calls at the same time, {operation.name}, "
                    "of which the first was cancelled"
                )
                ctx.fault(
                    "A9", f"{what}: the second {second}", given=operation.given, error=second.error
                )
                return
