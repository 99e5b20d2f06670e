"""What every loop promises: how a turn is told and stored, what hooks may demand of it, how it fails and how it stops.

Loops are run in a scripted session (`_turns`) and judged by what they said and did to others. `_orchestrator_limits` beside
this file holds the checks that need many model calls or many cancellations.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.cpu_clock import unstalled_time
from amplifier.conformance.harness.mounted_module import CheckContext
from amplifier.conformance.harness.scripted_turns import (
    RecordedTurn,
    ScriptedSession,
    failing_cases,
    hook_violations,
    hooked_cases,
    needs_coordinator,
    plain_cases,
    repeated_answer_violations,
    results_in,
    stop_violations,
    stopped_cases,
    turn_violations,
    words_of,
)
from amplifier.conformance.target.source_literals import settings_in

LOOPS = ("orchestrator",)

EVERY_TURN = ("O3", "O4", "O5", "O6", "O7", "O8", "O9", "O10", "O11", "O12", "O13", "O14", "O24")
"""What can be found broken in any turn."""

ONE_TOOL: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Look, and tell.",
            "answers": [{"blocks": [{"call": "alpha"}]}, {"blocks": [{"say": "Seen. "}]}],
        }
    ]
}


def report(
    ctx: CheckContext, violations: Iterable[tuple[str, str]], session: ScriptedSession, turn: RecordedTurn | None = None
) -> None:
    """Write violations down, one for each clause."""
    seen: set[str] = set()
    error = None if turn is None or turn.outcome is None else turn.outcome.error
    for clause, what in violations:
        if clause not in seen:
            seen.add(clause)
            ctx.fault(clause, what, error=error, given=session.case)


_known: set[Any] = set()
"""Loops that have run a turn in this process, so that it is known how they ask the model."""


async def get_to_know(ctx: CheckContext) -> None:
    """Run one turn without judging it: whether a loop tells the model of tools decides what a model may answer."""
    if ctx.loaded.subject.file in _known:
        return
    _known.add(ctx.loaded.subject.file)
    async with ctx.mount() as mounted:
        if mounted.instance is not None:
            await ScriptedSession(mounted, ONE_TOOL).run_turn()


# ── shape ──


@check("O1", kind="structure", types=LOOPS)
async def has_the_shape(ctx: CheckContext) -> None:
    """Looks at execute and its parameters, and runs a turn with the five arguments of the contract alone."""
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        execute = getattr(mounted.instance, "execute", None)
        if not callable(execute):
            ctx.fault("O1", f"{type(mounted.instance).__name__} has no execute")
            return
        if inspect.isasyncgenfunction(execute):
            ctx.fault("O1", "execute is an async generator, which cannot be awaited")
            return
        if _refused(execute) is not None:
            what = f"execute does not take prompt, context, providers, tools and hooks by keyword: {_refused(execute)}"
            ctx.fault("O1", what)
            return
        session = ScriptedSession(mounted, ONE_TOOL)
        turn = await session.run_turn(alone=True)
        outcome = turn.outcome
        if outcome is not None and outcome.kind == "raised":
            what = f"called with prompt, context, providers, tools and hooks, execute {outcome}"
            ctx.fault("O1", what, error=outcome.error)
    async with ctx.mount() as mounted:
        session = ScriptedSession(mounted, ONE_TOOL)
        answer = mounted.instance.execute(**session.arguments())
        if not inspect.isawaitable(answer):
            ctx.fault("O1", f"execute is not async: it returned {type(answer).__name__}")
            return
        await mounted.call(lambda: answer)


def _refused(execute: Any) -> str | None:
    """Why a function does not take the five arguments; None if it does, or does not say."""
    given: dict[str, Any] = dict.fromkeys(("prompt", "context", "providers", "tools", "hooks"))
    if needs_coordinator(execute):
        given["coordinator"] = None
    try:
        inspect.signature(execute).bind(**given)
    except TypeError as error:
        return str(error)
    except ValueError:  # no signature
        return None
    return None


# ── turns ──


@check(*EVERY_TURN, "O23", kind="behaviour", types=LOOPS)
async def keeps_small_turns(ctx: CheckContext) -> None:
    """Runs small turns with scripted models and tools, and compares what was told, stored and asked with the script."""
    await _each(ctx, plain_cases(), _judge_turns)


@check(*EVERY_TURN, "O23", kind="behaviour", types=LOOPS, inputs="turns")
async def keeps_drawn_turns(ctx: CheckContext) -> None:
    """Does the same with larger turns that are drawn."""
    await _drawn(ctx, _judge_turns)


async def _judge_turns(ctx: CheckContext, session: ScriptedSession) -> None:
    for turn in await session.run_turns():
        report(ctx, turn_violations(turn), session, turn)
    report(ctx, repeated_answer_violations(session.turns), session)


HOOKS = ("O15", "O16", "O17", "O18", "O19", "O20", "O29")


@check(*EVERY_TURN, *HOOKS, "O23", kind="behaviour", types=LOOPS)
async def honours_one_hook(ctx: CheckContext) -> None:
    """Lets a hook deny, change, ask, inject or whisper at each position, and looks at what becomes of it."""
    await _each(ctx, hooked_cases(), _judge_hooks)


@check(*EVERY_TURN, *HOOKS, "O23", kind="behaviour", types=LOOPS, inputs="hooked_turns")
async def honours_drawn_hooks(ctx: CheckContext) -> None:
    """Lets hooks do so at many drawn positions in one turn."""
    await _drawn(ctx, _judge_hooks)


async def _judge_hooks(ctx: CheckContext, session: ScriptedSession) -> None:
    for turn in await session.run_turns():
        report(ctx, hook_violations(turn), session, turn)
        report(ctx, turn_violations(turn), session, turn)


@check(*EVERY_TURN, "O21", "O26", "O23", kind="behaviour", types=LOOPS)
async def passes_each_error_on(ctx: CheckContext) -> None:
    """Lets provider and context fail in each way, looks at what execute raises, and runs another turn."""
    await _each(ctx, failing_cases(), _judge_errors)


@check(*EVERY_TURN, "O21", "O26", "O23", kind="behaviour", types=LOOPS, inputs="failing_turns")
async def passes_drawn_errors_on(ctx: CheckContext) -> None:
    """Lets provider and context fail at drawn positions, looks at what execute raises, and runs another turn."""
    await _drawn(ctx, _judge_errors)


async def _judge_errors(ctx: CheckContext, session: ScriptedSession) -> None:
    turns = await session.run_turns()
    for turn in turns:
        report(ctx, turn_violations(turn), session, turn)
        report(ctx, _judge_error(turn), session, turn)
    first, last = turns[0].outcome, turns[-1].outcome
    if first is not None and first.kind == "raised" and last is not None and turns[-1].went_through:
        what = f"in the turn after a provider's error execute {last}"
        ctx.expect(last.returned, "O26", what, error=last.error, given=session.case)


def _judge_error(turn: RecordedTurn) -> Iterable[tuple[str, str]]:
    failed, outcome = turn.entries("failed"), turn.outcome
    if not failed or outcome is None or outcome.kind == "late":
        return
    error = failed[-1][1].data
    if not isinstance(outcome.error, type(error)):
        yield "O21", f"the provider raised {type(error).__name__}, and execute {outcome}"
    if not turn.positions("event", "provider:error"):
        yield "O26", f"the provider raised {type(error).__name__}, and no provider:error was emitted"


TurnCheck = Callable[[CheckContext, ScriptedSession], Awaitable[None]]


_MOST_SECONDS = 20.0
_spent: dict[tuple[str, TurnCheck], float] = {}
"""Seconds that turns have taken in this process."""
_found: dict[tuple[str, TurnCheck], set[str]] = {}
"""What small turns have shown in this process, by backend: larger turns need not show it again, nor be made smaller."""


async def _each(ctx: CheckContext, cases: Iterable[dict[str, Any]], turn_check: TurnCheck) -> None:
    """Play cases; of each clause the first one that breaks it is small enough."""
    found = _found.setdefault((ctx.backend, turn_check), set())
    for case in cases:
        if _is_too_slow(ctx, turn_check):
            return
        before = len(ctx.faults)
        await _play(ctx, case, turn_check)
        new = [fault for fault in ctx.faults[before:] if fault.clause not in found]
        ctx.faults[before:] = new
        found.update(fault.clause for fault in new)


async def _drawn(ctx: CheckContext, turn_check: TurnCheck) -> None:
    """Play the drawn case."""
    if _is_too_slow(ctx, turn_check):
        return
    await _play(ctx, ctx.case, turn_check)
    found = _found.get((ctx.backend, turn_check), set())
    ctx.faults[:] = [fault for fault in ctx.faults if fault.clause not in found]


def _is_too_slow(ctx: CheckContext, turn_check: TurnCheck) -> bool:
    """Whether the loop has used up its time, as one does that waits before it tries again."""
    if _spent.get((ctx.backend, turn_check), 0.0) < _MOST_SECONDS:
        return False
    ctx.notes.append("the loop takes its time, so that not every turn could be tried")
    return True


async def _play(ctx: CheckContext, case: dict[str, Any], turn_check: TurnCheck) -> None:
    started = unstalled_time()
    await get_to_know(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is not None:
            session = ScriptedSession(mounted, case)
            await turn_check(ctx, session)
            if session.gave_up == "O20":
                what = "after a deny at provider:request the loop asks its hooks again without end"
                ctx.fault("O20", what, given=case)
            elif session.gave_up is not None:
                ctx.fault(
                    session.gave_up, "in a turn of a few answers the model was asked again without end", given=case
                )
    key = (ctx.backend, turn_check)
    _spent[key] = _spent.get(key, 0.0) + unstalled_time() - started


@check("O14", kind="behaviour", types=LOOPS)
async def tells_failures_from_successes(ctx: CheckContext) -> None:
    """Compares what is stored for tools that raise with what is stored for tools that have nothing to say."""
    said = [{"say": "Well. "}]
    await get_to_know(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        calls = [
            {"call": "alpha", "does": "nothing"},
            {"call": "beta", "does": "empty"},
            {"call": "gamma", "does": "raises Unplanned it broke"},
            {"call": "alpha", "does": "raises ValueError no such thing"},
        ]
        session = ScriptedSession(
            mounted, {"turns": [{"prompt": "Try.", "answers": [{"blocks": calls}, {"blocks": said}]}]}
        )
        turn = (await session.run_turns())[0]
        stored = {call_id: told for _, each in turn.entries("stored") for call_id, told in results_in(each.data)}
        told = [words_of(stored.get(call.id, "")).replace(call.id, "").strip() for call in turn.script.calls]
        for call, text in list(zip(turn.script.calls, told, strict=True))[2:]:
            if call.id in stored and (not text or text in told[:2]):
                what = f"for a tool that raised the model is told {text!r}, as for one that did its work in silence"
                ctx.fault("O14", what)
                return


# ── stopping ──


@check(*EVERY_TURN, "O22", "O23", kind="behaviour", types=LOOPS)
async def stops_at_each_place(ctx: CheckContext) -> None:
    """Asks for a graceful stop while the model or a tool works, and looks at what is started, finished and stored."""
    await _each(ctx, stopped_cases(), _judge_stopped)


@check(*EVERY_TURN, "O22", "O23", kind="behaviour", types=LOOPS, inputs="stopped_turns")
async def stops_at_drawn_places(ctx: CheckContext) -> None:
    """Does so in turns that are drawn."""
    await _drawn(ctx, _judge_stopped)


async def _judge_stopped(ctx: CheckContext, session: ScriptedSession) -> None:
    turn = await session.run_turn()
    report(ctx, stop_violations(turn), session, turn)
    report(ctx, turn_violations(turn), session, turn)


# ── recommendations ──


@check("O25", kind="behaviour", types=LOOPS)
async def chooses_the_provider(ctx: CheckContext) -> None:
    """Offers three providers; the first is asked, or the one that the setting ``default_provider`` names."""
    asked = await _asked(ctx, {})
    if asked is not None:
        ctx.expect(asked == "one", "O25", f"of the providers one, two and three {asked!r} was asked")
    if "default_provider" in settings_in(ctx.loaded.subject):
        asked = await _asked(ctx, {"default_provider": "two"})
        if asked is not None:
            ctx.expect(asked == "two", "O25", f"with default_provider 'two' the provider {asked!r} was asked")


async def _asked(ctx: CheckContext, config: dict[str, Any]) -> str | None:
    async with ctx.mount(config={**ctx.loaded.config, **config}) as mounted:
        if mounted.instance is None:
            return None
        turn = await ScriptedSession(mounted, {**ONE_TOOL, "providers": 3}).run_turn()
        return next((each.name for _, each in turn.entries("asked")), None)


@check("O27", "O28", kind="behaviour", types=LOOPS)
async def tells_how_it_goes(ctx: CheckContext) -> None:
    """Listens to a plain turn for content_block events, prompt:submit and prompt:complete."""
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        turn = await ScriptedSession(mounted, {**ONE_TOOL, "streams": True}).run_turn()
        if turn.outcome is None or not turn.outcome.returned:
            return
        names = [each.name for _, each in turn.events]
        passed_on = any(name.startswith("content_block:") for name in names)
        if not passed_on and not _generates(mounted.instance):
            ctx.fault("O27", "no content_block event was emitted, and no member is an async generator")
        submitted, stored = turn.positions("event", "prompt:submit"), turn.positions("stored", "user")
        ctx.expect(submitted, "O28", "prompt:submit was not emitted")
        if submitted and stored and stored[0] < submitted[0]:
            ctx.fault("O28", "prompt:submit was emitted after the prompt had been stored")
        complete, answered = turn.positions("event", "prompt:complete"), turn.positions("answered")
        ctx.expect(complete, "O28", "prompt:complete was not emitted")
        if complete and answered and complete[0] < answered[-1]:
            ctx.fault("O28", "prompt:complete was emitted before the answer")


def _generates(instance: Any) -> bool:
    return any(inspect.isasyncgenfunction(getattr(type(instance), name, None)) for name in dir(type(instance)))
