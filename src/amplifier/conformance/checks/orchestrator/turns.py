"""Checks of loops: events and transcript of a turn, hooks, errors and graceful stops.

Loops run in a scripted session, and the rules of the contract read the log of what they did.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.turn_rules import (
    hook_violations,
    repeated_answer_violations,
    stop_violations,
    turn_violations,
)
from amplifier.conformance.target.calls import binding_error
from amplifier.conformance.target.literals import settings_in
from amplifier.conformance.target.mounted import CheckContext
from amplifier.conformance.target.turns.record import RecordedTurn, results_in, words_of
from amplifier.conformance.target.turns.session import ScriptedSession, needs_coordinator

LOOPS = ("orchestrator",)

EVERY_TURN = ("O3", "O4", "O5", "O6", "O7", "O8", "O9", "O10", "O11", "O12", "O13", "O14", "O24", "O30")
"""The clauses that any turn may break."""

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
    """Report violations, one for each clause."""
    error = None if turn is None or turn.outcome is None else turn.outcome.error
    first: dict[str, str] = {}
    for clause, what in violations:
        first.setdefault(clause, what)
    for clause, what in first.items():
        ctx.fault(clause, what, error=error, given=session.case)


_known: set[Any] = set()
"""Loops that have run a turn in this process."""


async def run_first_turn(ctx: CheckContext) -> None:
    """Run one turn without checking it: the scripted model needs to know whether the loop offers it tools."""
    if ctx.loaded.target.file in _known:
        return
    _known.add(ctx.loaded.target.file)
    async with ctx.mount() as mounted:
        if mounted.instance is not None:
            await ScriptedSession(mounted, ONE_TOOL).run_turn()


@check("O1", kind="structure", types=LOOPS)
async def has_the_shape(ctx: CheckContext) -> None:
    """Reads execute and its parameters, and runs a turn with the five arguments of the contract alone."""
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
        names = ("prompt", "context", "providers", "tools", "hooks")
        required = (*names, "coordinator") if needs_coordinator(execute) else names
        problem = binding_error(execute, **dict.fromkeys(required))
        if problem is not None:
            what = f"execute does not take prompt, context, providers, tools and hooks by keyword: {problem}"
            ctx.fault("O1", what)
            return
        outcome = (await ScriptedSession(mounted, ONE_TOOL).run_turn(with_coordinator=False)).outcome
        if outcome is not None and outcome.kind == "raised":
            what = f"called with prompt, context, providers, tools and hooks, execute {outcome}"
            ctx.fault("O1", what, error=outcome.error)
    async with ctx.mount() as mounted:
        arguments = ScriptedSession(mounted, ONE_TOOL).arguments()
        outcome = await mounted.call(mounted.instance.execute, **arguments)
        if outcome.is_async is False:
            ctx.fault("O1", f"execute is not async: it returned {type(outcome.value).__name__}")


@check(*EVERY_TURN, "O23", kind="behaviour", types=LOOPS, inputs="turns")
async def keeps_turns(ctx: CheckContext) -> None:
    """Runs turns with scripted models and tools, and compares events, messages and requests with the script."""
    await _run_case(ctx, _check_turns)


async def _check_turns(ctx: CheckContext, session: ScriptedSession) -> None:
    for turn in await session.run_turns():
        report(ctx, turn_violations(turn), session, turn)
    report(ctx, repeated_answer_violations(session.turns), session)


HOOKS = ("O15", "O16", "O17", "O18", "O19", "O20", "O29")


@check(*EVERY_TURN, *HOOKS, "O23", kind="behaviour", types=LOOPS, inputs="hooked_turns")
async def honours_hooks(ctx: CheckContext) -> None:
    """Lets hooks deny, modify, ask or inject at each event, and checks what the loop does about it."""
    await _run_case(ctx, _check_hooks)


async def _check_hooks(ctx: CheckContext, session: ScriptedSession) -> None:
    for turn in await session.run_turns():
        report(ctx, hook_violations(turn), session, turn)
        report(ctx, turn_violations(turn), session, turn)


@check(*EVERY_TURN, "O21", "O26", "O23", kind="behaviour", types=LOOPS, inputs="failing_turns")
async def passes_errors_on(ctx: CheckContext) -> None:
    """Lets provider and context fail in each way, checks what execute raises, and runs another turn."""
    await _run_case(ctx, _check_errors)


async def _check_errors(ctx: CheckContext, session: ScriptedSession) -> None:
    turns = await session.run_turns()
    for turn in turns:
        report(ctx, turn_violations(turn), session, turn)
        report(ctx, _error_violations(turn), session, turn)
    first, last = turns[0].outcome, turns[-1].outcome
    if first is not None and first.kind == "raised" and last is not None and turns[-1].went_through:
        asked = bool(turns[-1].positions("asked"))
        what = f"in the turn after a provider's error execute {last}{'' if asked else ' and did not call the model'}"
        ctx.expect(last.returned and asked, "O26", what, error=last.error, given=session.case)


def _error_violations(turn: RecordedTurn) -> Iterable[tuple[str, str]]:
    failed, outcome = turn.entries("failed"), turn.outcome
    if not failed or outcome is None or outcome.kind == "late":
        return
    error = failed[-1][1].data
    if not isinstance(outcome.error, type(error)):
        yield "O21", f"the provider raised {type(error).__name__}, and execute {outcome}"
    if not turn.positions("event", "provider:error"):
        yield "O26", f"the provider raised {type(error).__name__}, and no provider:error was emitted"


CaseCheck = Callable[[CheckContext, ScriptedSession], Awaitable[None]]


async def _run_case(ctx: CheckContext, check_case: CaseCheck) -> None:
    case = ctx.case
    await run_first_turn(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is not None:
            session = ScriptedSession(mounted, case)
            await check_case(ctx, session)
            if session.gave_up == "O20":
                what = "after a deny at provider:request the loop asks its hooks again without end"
                ctx.fault("O20", what, given=case)
            elif session.gave_up is not None:
                ctx.fault(
                    session.gave_up, "in a turn of a few answers the model was asked again without end", given=case
                )


@check("O14", kind="behaviour", types=LOOPS)
async def tells_failures_from_successes(ctx: CheckContext) -> None:
    """Compares the stored results of tools that raise with those of tools that return nothing."""
    await run_first_turn(ctx)
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
            mounted, {"turns": [{"prompt": "Try.", "answers": [{"blocks": calls}, {"blocks": [{"say": "Well. "}]}]}]}
        )
        turn = (await session.run_turns())[0]
        stored = {call_id: result for _, each in turn.entries("stored") for call_id, result in results_in(each.data)}
        texts = [words_of(stored.get(call.id, "")).replace(call.id, "").strip() for call in turn.script.calls]
        for call, text in list(zip(turn.script.calls, texts, strict=True))[2:]:
            if call.id in stored and (not text or text in texts[:2]):
                what = f"for a tool that raised the model gets {text!r}, as for one that succeeded without output"
                ctx.fault("O14", what)
                return


@check(*EVERY_TURN, "O22", "O23", kind="behaviour", types=LOOPS, inputs="stopped_turns")
async def stops_gracefully(ctx: CheckContext) -> None:
    """Requests a graceful stop while the model or a tool works, and checks what is started, finished and stored."""
    await _run_case(ctx, _check_stopped)


async def _check_stopped(ctx: CheckContext, session: ScriptedSession) -> None:
    turn = await session.run_turn()
    report(ctx, stop_violations(turn, is_on_island=ctx.is_on_island), session, turn)
    report(ctx, turn_violations(turn), session, turn)


@check("O25", kind="behaviour", types=LOOPS)
async def chooses_the_provider(ctx: CheckContext) -> None:
    """Offers three providers; the first is asked, or the one that the setting ``default_provider`` names."""
    asked = await _asked(ctx, {})
    if asked is not None:
        ctx.expect(asked == "one", "O25", f"of the providers one, two and three {asked!r} was asked")
    if "default_provider" in settings_in(ctx.loaded.target):
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
    """Reads the events of a plain turn: content_block, prompt:submit and prompt:complete."""
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        turn = await ScriptedSession(mounted, {**ONE_TOOL, "streams": True}).run_turn()
        if turn.outcome is None or not turn.outcome.returned:
            return
        names = [each.name for _, each in turn.events]
        kind = type(mounted.instance)
        generates = any(inspect.isasyncgenfunction(getattr(kind, name, None)) for name in dir(kind))
        if not generates and not any(name.startswith("content_block:") for name in names):
            ctx.fault("O27", "no content_block event was emitted, and no member is an async generator")
        submitted, stored = turn.positions("event", "prompt:submit"), turn.positions("stored", "user")
        ctx.expect(submitted, "O28", "prompt:submit was not emitted")
        if submitted and stored and stored[0] < submitted[0]:
            ctx.fault("O28", "prompt:submit was emitted after the prompt had been stored")
        complete, answered = turn.positions("event", "prompt:complete"), turn.positions("answered")
        ctx.expect(complete, "O28", "prompt:complete was not emitted")
        if complete and answered and complete[0] < answered[-1]:
            ctx.fault("O28", "prompt:complete was emitted before the answer")
