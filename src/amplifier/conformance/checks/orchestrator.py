"""Check loops: turns with hooks, errors and stops, the limit, and cancellation."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.in_words import in_words
from amplifier.conformance.oracles.calls import chosen_suspensions, with_instance
from amplifier.conformance.oracles.turn_rules import (
    error_violations,
    hook_violations,
    offer_violations,
    place_of,
    repeated_answer_violations,
    stop_violations,
    turn_violations,
)
from amplifier.conformance.target.calls import Outcome, binding_error
from amplifier.conformance.target.mounted import CheckContext, MountedModule
from amplifier.conformance.target.source import settings_in
from amplifier.conformance.target.turn_script import RecordedTurn, results_in, words_of
from amplifier.conformance.target.turn_session import (
    MAX_ENDLESS_MODEL_CALLS,
    ScriptedSession,
    needs_coordinator,
)

# A loop runs in a session with doubles for models, tools, hooks and the context. They follow a
# script and log each call, and the rules of the contract read that log.

LOOPS = ("orchestrator",)

EVERY_TURN = tuple(f"O{number}" for number in (*range(3, 25), 26, 29, 30))
"""The clauses that any turn may break."""


def one_turn(prompt: str, *answers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a case of one turn, in which the model gives these answers one after the other."""
    return {
        **more,
        "turns": [{"prompt": prompt, "answers": [{"blocks": blocks} for blocks in answers]}],
    }


_DONE = [{"say": "Done. "}]
ONE_TOOL = one_turn("Look, and tell.", [{"call": "alpha"}], [{"say": "Seen. "}])


def report(
    ctx: CheckContext,
    violations: Iterable[tuple[str, str]],
    session: ScriptedSession,
    turn: RecordedTurn | None = None,
) -> None:
    """Report violations as findings, with the line of the loop if it is known."""
    error = None if turn is None or turn.outcome is None else turn.outcome.error
    for clause, what in violations:
        line = None if turn is None or error is not None else place_of(turn, clause)
        ctx.fault(clause, what, error=error, given=session.case, location=line)


_known: set[Any] = set()
"""Loops that have run a turn in this process."""


@asynccontextmanager
async def known_loop(ctx: CheckContext) -> AsyncIterator[MountedModule | None]:
    """Mount the loop, after a first turn in another session. Return None if mount returned none."""
    await run_first_turn(ctx)
    async with with_instance(ctx) as mounted:
        yield mounted


async def run_first_turn(ctx: CheckContext) -> None:
    """Run one turn without checking it.

    It shows whether the loop offers tools to the model, which the script depends on.
    """
    if ctx.loaded.target.file in _known:
        return
    _known.add(ctx.loaded.target.file)
    async with ctx.mount() as mounted:
        if mounted.instance is not None:
            await ScriptedSession(mounted, ONE_TOOL).run_turn()


@check("O1", kind="structure", types=LOOPS, on=with_instance)
async def has_the_shape(mounted: MountedModule) -> None:
    """Inspect execute, and run a turn with only the five arguments of the contract."""
    what, error = _problem_with_execute(mounted.instance), None
    if what is None:
        outcome = (
            await ScriptedSession(mounted, ONE_TOOL).run_turn(with_coordinator=False)
        ).outcome
        if outcome is not None and outcome.kind == "raised":
            what = f"called with prompt, context, providers, tools and hooks, execute {outcome}"
            error = outcome.error
        elif outcome is not None and outcome.is_async is False:
            what = f"execute is not async: it returned {type(outcome.value).__name__}"
    if what is not None:
        mounted.ctx.fault("O1", what, error=error)


def _problem_with_execute(loop: Any) -> str | None:
    execute = getattr(loop, "execute", None)
    if not callable(execute):
        return f"{type(loop).__name__} has no execute"
    if inspect.isasyncgenfunction(execute):
        return "execute is an async generator, which cannot be awaited"
    names = ("prompt", "context", "providers", "tools", "hooks")
    required = (*names, "coordinator") if needs_coordinator(execute) else names
    problem = binding_error(execute, **dict.fromkeys(required))
    expected = "prompt, context, providers, tools and hooks by keyword"
    return problem and f"execute does not take {expected}: {problem}"


@check(*EVERY_TURN, kind="behaviour", types=LOOPS, inputs="turns", on=known_loop)
async def keeps_turns(mounted: MountedModule) -> None:
    """Run scripted turns with hooks, errors and graceful stops, and compare log and script.

    Hooks deny, modify, ask or inject.
    """
    ctx = mounted.ctx
    session = ScriptedSession(mounted, ctx.case)
    for turn in await session.run_turns():
        for violations in (hook_violations, error_violations, turn_violations):
            report(ctx, violations(turn), session, turn)
        report(ctx, stop_violations(turn, is_on_island=ctx.is_on_island), session, turn)
    report(ctx, repeated_answer_violations(session.turns), session)
    report(ctx, offer_violations(session.turns), session)
    _check_next_turn(ctx, session)
    if session.gave_up == "O20":
        ctx.fault(
            "O20",
            "after a deny at provider:request the loop emits the event again without end",
            given=ctx.case,
        )
    elif session.gave_up is not None:
        what = "in a turn of a few answers the model was called again without end"
        ctx.fault(session.gave_up, what, given=ctx.case)


def _check_next_turn(ctx: CheckContext, session: ScriptedSession) -> None:
    first, last = session.turns[0], session.turns[-1]
    if (
        first.positions("failed")
        and first.outcome is not None
        and first.outcome.kind == "raised"
        and last.went_through
    ):
        outcome, has_called = last.outcome, bool(last.positions("asked"))
        what = f"in the turn after a provider's error execute {outcome}"
        what += "" if has_called else " and did not call the model"
        is_good = outcome is not None and outcome.returned and has_called
        ctx.expect(is_good, "O26", what, error=outcome and outcome.error, given=session.case)


@check("O14", kind="behaviour", types=LOOPS, on=known_loop)
async def tells_failures_from_successes(mounted: MountedModule) -> None:
    """Compare the stored results of tools that raise with those of tools that return nothing."""
    ctx = mounted.ctx
    calls = [
        {"call": "alpha", "does": "nothing"},
        {"call": "beta", "does": "empty"},
        {"call": "gamma", "does": "raises Unplanned it broke"},
        {"call": "alpha", "does": "raises ValueError no such thing"},
    ]
    turn = (await ScriptedSession(mounted, one_turn("Try.", calls, _DONE)).run_turns())[0]
    stored = {
        call_id: result
        for _, entry in turn.entries("stored")
        for call_id, result in results_in(entry.data)
    }
    texts = [
        words_of(stored.get(call.id, "")).replace(call.id, "").strip() for call in turn.script.calls
    ]
    for call, text in list(zip(turn.script.calls, texts, strict=True))[2:]:
        if call.id in stored and (not text or text in texts[:2]):
            what = f"for a tool that raised the model gets {text!r}"
            ctx.fault("O14", f"{what}, as for one that succeeded without output")
            return


@check("O13", kind="behaviour", types=LOOPS)
async def tells_empty_from_not_made(ctx: CheckContext) -> None:
    """Compare the stored results of tools that return nothing with results of calls not made.

    A graceful stop and a cancellation leave calls that are not made.
    """
    await run_first_turn(ctx)
    names = ("alpha", "beta", "gamma")
    stopped = [{"call": name, "steps": 40, "stops": name == "alpha"} for name in names * 3]
    slow = [{"call": name, "steps": 9} for name in names]
    empty = [
        {"call": name, "does": does}
        for name, does in zip(names, ("nothing", "empty", "zero"), strict=True)
    ]
    not_made: set[str] = set()
    for blocks, cancelled_at in ((stopped, 0), *((slow, at) for at in _CANCELLED_AT)):
        turn = await _run_alone(ctx, one_turn("Look.", blocks, _DONE), cancelled_at)
        if turn is None:
            return
        returned = _ids_of(turn, "returned")
        not_made |= {text for call_id, text in _plain_results(turn) if call_id not in returned}
    case = one_turn("Try.", empty, _DONE)
    turn = await _run_alone(ctx, case)
    if turn is None:
        return
    returned = _ids_of(turn, "returned")
    for call_id, text in _plain_results(turn):
        if call_id in returned and text and text in not_made:
            what = f"a tool returned nothing, and its result was stored as {text[:100]!r}"
            ctx.fault("O13", f"{what}, as that of a call that was not made", given=case)
            return


_CANCELLED_AT = (6, 10, 15)


async def _run_alone(
    ctx: CheckContext, case: dict[str, Any], cancelled_at: int = 0
) -> RecordedTurn | None:
    """Run the turn of a case in a new session, or return None if mount returned no loop."""
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return None
        session = ScriptedSession(mounted, case)
        run = session.run_and_cancel(cancelled_at) if cancelled_at else session.run_turn()
        return await run


def _ids_of(turn: RecordedTurn, kind: str) -> set[str]:
    calls = [entry.data["call"] for _, entry in turn.entries(kind)]
    return {call.id for call in calls if call is not None}


def _plain_results(turn: RecordedTurn) -> list[tuple[str, str]]:
    """Return the stored results by call id, as texts without that id."""
    return [
        (call_id, words_of(result).replace(call_id, "").strip())
        for _, call_id, result in turn.stored_results
    ]


@check("O25", kind="behaviour", types=LOOPS)
async def chooses_the_provider(ctx: CheckContext) -> None:
    """Offer three providers. The loop has to call the first, or the one in ``default_provider``."""
    name = await _called_provider(ctx, {})
    if name is not None:
        what = f"of the providers one, two and three {name!r} was called"
        ctx.expect(name == "one", "O25", what)
    if "default_provider" in settings_in(ctx.loaded.target):
        name = await _called_provider(ctx, {"default_provider": "two"})
        if name is not None:
            what = f"with default_provider 'two' the provider {name!r} was called"
            ctx.expect(name == "two", "O25", what)


async def _called_provider(ctx: CheckContext, config: dict[str, Any]) -> str | None:
    """Return the provider that a turn with these settings calls, or None if it calls none."""
    async with ctx.mount(config={**ctx.loaded.config, **config}) as mounted:
        if mounted.instance is None:
            return None
        turn = await ScriptedSession(mounted, {**ONE_TOOL, "providers": 3}).run_turn()
        return next((entry.name for _, entry in turn.entries("asked")), None)


@check("O27", "O28", kind="behaviour", types=LOOPS, on=with_instance)
async def tells_how_it_goes(mounted: MountedModule) -> None:
    """Read the events of a plain turn: content_block, prompt:submit and prompt:complete."""
    ctx = mounted.ctx
    turn = await ScriptedSession(mounted, {**ONE_TOOL, "streams": True}).run_turn()
    if turn.outcome is None or not turn.outcome.returned:
        return
    names = [event.name for _, event in turn.events]
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


_SECONDS = 60.0
_SETTLING_STEPS = 10
_REPEATS = 12
"""Cancellations at the first suspension of each tool and provider, so that lost slots run out."""
_ACTIONS = {
    "started": "was started",
    "returned": "returned",
    "raised": "raised",
    "asked": "was called",
    "answered": "answered",
    "stored": "was stored",
}
_TRANSCRIPT = ("O5", "O6", "O11", "O12", "O13")
"""The clauses that an interrupted turn has to keep."""

_PARALLEL = one_turn(
    "Do both.",
    [{"think": "hm"}, {"call": "alpha", "steps": 2, "idle": 40}, {"call": "beta", "steps": 0}],
    [{"call": "gamma", "does": "raises ValueError no"}, {"call": "alpha", "does": "unknown"}],
    _DONE,
)
_HOOKED = one_turn(
    "Do what you may.",
    [
        {"call": "alpha", "pre": "ask yes", "post": "inject"},
        {"call": "beta", "pre": "deny"},
        {"call": "gamma", "pre": "inject", "post": "inject once", "steps": 1},
    ],
    _DONE,
    streams=True,
)
CANCELLED = {"parallel tools": _PARALLEL, "hooks that object": _HOOKED}


def _failing(*answers: dict[str, Any]) -> dict[str, Any]:
    return {"turns": [{"prompt": "Try it.", "answers": list(answers)}]}


_ONE_CALL: dict[str, Any] = {"blocks": [{"call": "alpha"}]}
FAILING = {
    "a provider that answers at the second attempt": _failing(
        _ONE_CALL, {"error": "RateLimitError", "times": 1}, _ONE_CALL, {"blocks": _DONE}
    ),
    "a provider that always refuses": _failing(_ONE_CALL, {"error": "RateLimitError"}),
}
"""Turns that fail, or may fail, because of their provider. They are cancelled too."""


# ── the limit ──


@check("O5", "O6", "O11", "O12", "O13", "O23", kind="behaviour", types=LOOPS)
async def has_a_limit(ctx: CheckContext) -> None:
    """Let the model call a tool in every answer, and count its answers, even after other turns."""
    await run_first_turn(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        first = await _count(mounted, ctx)
        if first > MAX_ENDLESS_MODEL_CALLS:
            what = "a model that never stops was called more than"
            ctx.fault("O23", f"{what} {MAX_ENDLESS_MODEL_CALLS} times in one turn")
            return
        second = await _count(mounted)
    async with ctx.mount() as mounted:
        # The limit is of another kind, such as a time.
        if await _count(mounted) != first:
            return
    if second < first:
        what = f"in a first turn the model was called {first} times"
        ctx.fault("O23", f"{what}, in the next one {second} times")
        return
    async with ctx.mount() as mounted:
        for ending in ({"blocks": _DONE}, {"error": "NotFoundError"}, {"blocks": _DONE}):
            case = {
                "turns": [{"prompt": "Go.", "answers": [{"blocks": [{"call": "alpha"}]}, ending]}]
            }
            session = ScriptedSession(mounted, case)
            await session.run_turns()
            session.detach()
        session = ScriptedSession(mounted, ONE_TOOL)
        await session.run_and_cancel(8)
        session.detach()
        after = await _count(mounted)
        if after < first:
            what = f"at first the model was called {first} times"
            ctx.fault("O23", f"{what}; after turns of other kinds only {after} times")


async def _count(mounted: MountedModule, checked: CheckContext | None = None) -> int:
    """Count the calls of a model that never stops, in one turn.

    Args:
        mounted: The mounted loop.
        checked: The check that reports faults of the transcript, or None to count only.
    """
    session = ScriptedSession(mounted, ONE_TOOL, endless=True)
    turn = await session.run_turn(seconds=_SECONDS)
    turn.is_limited = True
    if checked is not None and session.gave_up is None:
        report(
            checked,
            (violation for violation in turn_violations(turn) if violation[0] in _TRANSCRIPT),
            session,
            turn,
        )
    session.detach()
    return len(turn.positions("asked"))


# ── cancellation ──


@check("O5", "O6", "O11", "O12", "O13", "A7", "A8", "A9", kind="cancellation", types=LOOPS)
async def keeps_the_transcript_when_cancelled(ctx: CheckContext) -> None:
    """Cancel turns at suspensions of models, tools, hooks and context, and check the transcript."""
    await run_first_turn(ctx)
    for name, case in {**CANCELLED, **FAILING}.items():
        async with ctx.mount() as mounted:
            if mounted.instance is None:
                return
            session = ScriptedSession(mounted, case)
            usual = (await session.run_turn()).outcome
            if usual is None or not (usual.returned or name in FAILING):
                what = f"the turn with {name} does not return"
                ctx.notes.append(f"{what}, so it was not cancelled at every suspension")
                continue
            last, tried = "", set[str]()
            for k in chosen_suspensions(ctx, session.suspensions, ctx.points * 4):
                where = ""
                for _ in range(_REPEATS):
                    session.reset()
                    turn, where = await session.run_and_cancel(k), session.cancelled_where
                    if where:
                        await _check_ended(ctx, session)
                    else:
                        _check_works(ctx, turn, last, usual)
                    if ctx.faults:
                        return
                    last = where or last
                    if where in tried or not where.startswith(("tool", "provider.")):
                        break
                tried.add(where)
            session.reset()
            _check_works(ctx, await session.run_turn(), last, usual)
            if ctx.faults:
                return


def _check_works(ctx: CheckContext, turn: RecordedTurn, where: str, usual: Outcome) -> None:
    """Report a turn that was not cancelled and has another kind of ending than usual."""
    outcome = turn.outcome
    if outcome is None or outcome.kind != usual.kind:
        what = f"after a cancelled turn execute {outcome}"
        what += "" if usual.returned else f"; before it {usual}"
        error = None if outcome is None else outcome.error
        ctx.fault("A9", what, cancelled_at=where, error=error)


async def _check_ended(ctx: CheckContext, session: ScriptedSession) -> None:
    """Report the faults of a cancelled turn.

    The faults are a normal end, a transcript that breaks the contract, and work that outlasts the
    turn.
    """
    turn, where = session.turn, session.cancelled_where
    about: dict[str, Any] = {
        "given": in_words("turns", session.case),
        "cancelled_at": where,
        "location": session.cancelled_line,
    }
    # There is no outcome if the cancellation came out of execute, as it should.
    outcome = turn.outcome
    # An error that is already propagating may come out before a cancellation.
    is_scripted = turn.ends_with_a_failure and not session.was_delivered
    is_raised = outcome is not None and outcome.kind == "raised" and not is_scripted
    if outcome is not None and (is_raised or session.was_delivered):
        what = f"a turn was cancelled, and execute {outcome}"
        place = ctx.location_of(outcome.error) if outcome.error is not None else None
        details = {**about, "location": place or session.cancelled_line}
        ctx.fault("A7", what, error=outcome.error, **details)
    for clause, what in turn_violations(turn) if outcome is None else ():
        if clause in _TRANSCRIPT:
            ctx.fault(clause, what, **about)
    ended = len(turn.log)
    for _ in range(_SETTLING_STEPS if session.running else 2):
        await anyio.lowlevel.checkpoint()
    late = [entry for entry in turn.log[ended:] if entry.kind in _ACTIONS]
    if late or session.running:
        action = f"{late[0].name!r} {_ACTIONS[late[0].kind]}" if late else "a tool still ran"
        what = f"a turn was cancelled and had ended, and afterwards {action}"
        ctx.fault("A8", what, **about)
