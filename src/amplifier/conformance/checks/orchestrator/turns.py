"""What every loop promises: how a turn is told and stored, what hooks may demand of it, how it fails and how it stops.

Loops are run in a scripted world (`_turns`) and judged by what they said and did to others. `_orchestrator_limits` beside
this file holds the checks that need many model calls or many cancellations.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.cpu_clock import fair_time
from amplifier.conformance.harness.mounted_module import Stage
from amplifier.conformance.harness.scripted_turns import (
    PlayedTurn,
    World,
    complaints_about,
    complaints_about_hooks,
    failing_cases,
    hooked_cases,
    judge_memory,
    judge_stop,
    needs_coordinator,
    plain_cases,
    results_in,
    stopped_cases,
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


def report(stage: Stage, complaints: Iterable[tuple[str, str]], world: World, turn: PlayedTurn | None = None) -> None:
    """Write complaints down, one for each clause."""
    seen: set[str] = set()
    error = None if turn is None or turn.outcome is None else turn.outcome.error
    for clause, what in complaints:
        if clause not in seen:
            seen.add(clause)
            stage.fault(clause, what, error=error, given=world.case)


_known: set[Any] = set()
"""Loops that have run a turn in this process, so that it is known how they ask the model."""


async def get_to_know(stage: Stage) -> None:
    """Run one turn without judging it: whether a loop tells the model of tools decides what a model may answer."""
    if stage.loaded.target.file in _known:
        return
    _known.add(stage.loaded.target.file)
    async with stage.scene() as scene:
        if scene.instance is not None:
            await World(scene, ONE_TOOL).play_turn()


# ── shape ──


@check("O1", kind="structure", types=LOOPS)
async def has_the_shape(stage: Stage) -> None:
    """Looks at execute and its parameters, and runs a turn with the five arguments of the contract alone."""
    async with stage.scene() as scene:
        if scene.instance is None:
            return
        execute = getattr(scene.instance, "execute", None)
        if not callable(execute):
            stage.fault("O1", f"{type(scene.instance).__name__} has no execute")
            return
        if inspect.isasyncgenfunction(execute):
            stage.fault("O1", "execute is an async generator, which cannot be awaited")
            return
        if _refused(execute) is not None:
            what = f"execute does not take prompt, context, providers, tools and hooks by keyword: {_refused(execute)}"
            stage.fault("O1", what)
            return
        world = World(scene, ONE_TOOL)
        turn = await world.play_turn(alone=True)
        outcome = turn.outcome
        if outcome is not None and outcome.kind == "raised":
            what = f"called with prompt, context, providers, tools and hooks, execute {outcome}"
            stage.fault("O1", what, error=outcome.error)
    async with stage.scene() as scene:
        world = World(scene, ONE_TOOL)
        answer = scene.instance.execute(**world.arguments())
        if not inspect.isawaitable(answer):
            stage.fault("O1", f"execute is not async: it returned {type(answer).__name__}")
            return
        await scene.call(lambda: answer)


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
async def keeps_small_turns(stage: Stage) -> None:
    """Runs small turns with scripted models and tools, and compares what was told, stored and asked with the script."""
    await _each(stage, plain_cases(), _judge_turns)


@check(*EVERY_TURN, "O23", kind="behaviour", types=LOOPS, inputs="turns")
async def keeps_drawn_turns(stage: Stage) -> None:
    """Does the same with larger turns that are drawn."""
    await _drawn(stage, _judge_turns)


async def _judge_turns(stage: Stage, world: World) -> None:
    for turn in await world.play():
        report(stage, complaints_about(turn), world, turn)
    report(stage, judge_memory(world.turns), world)


HOOKS = ("O15", "O16", "O17", "O18", "O19", "O20", "O29")


@check(*EVERY_TURN, *HOOKS, "O23", kind="behaviour", types=LOOPS)
async def honours_one_hook(stage: Stage) -> None:
    """Lets a hook deny, change, ask, inject or whisper at each place, and looks at what becomes of it."""
    await _each(stage, hooked_cases(), _judge_hooks)


@check(*EVERY_TURN, *HOOKS, "O23", kind="behaviour", types=LOOPS, inputs="hooked_turns")
async def honours_drawn_hooks(stage: Stage) -> None:
    """Lets hooks do so at many drawn places in one turn."""
    await _drawn(stage, _judge_hooks)


async def _judge_hooks(stage: Stage, world: World) -> None:
    for turn in await world.play():
        report(stage, complaints_about_hooks(turn), world, turn)
        report(stage, complaints_about(turn), world, turn)


@check(*EVERY_TURN, "O21", "O26", "O23", kind="behaviour", types=LOOPS)
async def passes_each_error_on(stage: Stage) -> None:
    """Lets provider and context fail in each way, looks at what execute raises, and runs another turn."""
    await _each(stage, failing_cases(), _judge_errors)


@check(*EVERY_TURN, "O21", "O26", "O23", kind="behaviour", types=LOOPS, inputs="failing_turns")
async def passes_drawn_errors_on(stage: Stage) -> None:
    """Lets provider and context fail at drawn places, looks at what execute raises, and runs another turn."""
    await _drawn(stage, _judge_errors)


async def _judge_errors(stage: Stage, world: World) -> None:
    turns = await world.play()
    for turn in turns:
        report(stage, complaints_about(turn), world, turn)
        report(stage, _judge_error(turn), world, turn)
    first, last = turns[0].outcome, turns[-1].outcome
    if first is not None and first.kind == "raised" and last is not None and turns[-1].went_through:
        what = f"in the turn after a provider's error execute {last}"
        stage.expect(last.returned, "O26", what, error=last.error, given=world.case)


def _judge_error(turn: PlayedTurn) -> Iterable[tuple[str, str]]:
    failed, outcome = turn.all("failed"), turn.outcome
    if not failed or outcome is None or outcome.kind == "late":
        return
    error = failed[-1][1].data
    if not isinstance(outcome.error, type(error)):
        yield "O21", f"the provider raised {type(error).__name__}, and execute {outcome}"
    if not turn.places("event", "provider:error"):
        yield "O26", f"the provider raised {type(error).__name__}, and no provider:error was emitted"


Judge = Callable[[Stage, World], Awaitable[None]]


_MOST_SECONDS = 20.0
_spent: dict[tuple[str, Judge], float] = {}
"""Seconds that turns have taken in this process."""
_found: dict[tuple[str, Judge], set[str]] = {}
"""What small turns have shown in this process, by backend: larger turns need not show it again, nor be made smaller."""


async def _each(stage: Stage, cases: Iterable[dict[str, Any]], judge: Judge) -> None:
    """Play cases; of each clause the first one that breaks it is small enough."""
    found = _found.setdefault((stage.backend, judge), set())
    for case in cases:
        if _is_too_slow(stage, judge):
            return
        before = len(stage.faults)
        await _play(stage, case, judge)
        new = [fault for fault in stage.faults[before:] if fault.clause not in found]
        stage.faults[before:] = new
        found.update(fault.clause for fault in new)


async def _drawn(stage: Stage, judge: Judge) -> None:
    """Play the drawn case."""
    if _is_too_slow(stage, judge):
        return
    await _play(stage, stage.case, judge)
    found = _found.get((stage.backend, judge), set())
    stage.faults[:] = [fault for fault in stage.faults if fault.clause not in found]


def _is_too_slow(stage: Stage, judge: Judge) -> bool:
    """Whether the loop has used up its time, as one does that waits before it tries again."""
    if _spent.get((stage.backend, judge), 0.0) < _MOST_SECONDS:
        return False
    stage.notes.append("the loop takes its time, so that not every turn could be tried")
    return True


async def _play(stage: Stage, case: dict[str, Any], judge: Judge) -> None:
    started = fair_time()
    await get_to_know(stage)
    async with stage.scene() as scene:
        if scene.instance is not None:
            world = World(scene, case)
            await judge(stage, world)
            if world.gave_up == "O20":
                what = "after a deny at provider:request the loop asks its hooks again without end"
                stage.fault("O20", what, given=case)
            elif world.gave_up is not None:
                stage.fault(
                    world.gave_up, "in a turn of a few answers the model was asked again without end", given=case
                )
    key = (stage.backend, judge)
    _spent[key] = _spent.get(key, 0.0) + fair_time() - started


@check("O14", kind="behaviour", types=LOOPS)
async def tells_failures_from_successes(stage: Stage) -> None:
    """Compares what is stored for tools that raise with what is stored for tools that have nothing to say."""
    said = [{"say": "Well. "}]
    await get_to_know(stage)
    async with stage.scene() as scene:
        if scene.instance is None:
            return
        calls = [
            {"call": "alpha", "does": "nothing"},
            {"call": "beta", "does": "empty"},
            {"call": "gamma", "does": "raises Unplanned it broke"},
            {"call": "alpha", "does": "raises ValueError no such thing"},
        ]
        world = World(scene, {"turns": [{"prompt": "Try.", "answers": [{"blocks": calls}, {"blocks": said}]}]})
        turn = (await world.play())[0]
        stored = {call_id: told for _, each in turn.all("stored") for call_id, told in results_in(each.data)}
        told = [words_of(stored.get(call.id, "")).replace(call.id, "").strip() for call in turn.script.calls]
        for call, text in list(zip(turn.script.calls, told, strict=True))[2:]:
            if call.id in stored and (not text or text in told[:2]):
                what = f"for a tool that raised the model is told {text!r}, as for one that did its work in silence"
                stage.fault("O14", what)
                return


# ── stopping ──


@check(*EVERY_TURN, "O22", "O23", kind="behaviour", types=LOOPS)
async def stops_at_each_place(stage: Stage) -> None:
    """Asks for a graceful stop while the model or a tool works, and looks at what is started, finished and stored."""
    await _each(stage, stopped_cases(), _judge_stopped)


@check(*EVERY_TURN, "O22", "O23", kind="behaviour", types=LOOPS, inputs="stopped_turns")
async def stops_at_drawn_places(stage: Stage) -> None:
    """Does so in turns that are drawn."""
    await _drawn(stage, _judge_stopped)


async def _judge_stopped(stage: Stage, world: World) -> None:
    turn = await world.play_turn()
    report(stage, judge_stop(turn), world, turn)
    report(stage, complaints_about(turn), world, turn)


# ── recommendations ──


@check("O25", kind="behaviour", types=LOOPS)
async def chooses_the_provider(stage: Stage) -> None:
    """Offers three providers; the first is asked, or the one that the setting ``default_provider`` names."""
    asked = await _asked(stage, {})
    if asked is not None:
        stage.expect(asked == "one", "O25", f"of the providers one, two and three {asked!r} was asked")
    if "default_provider" in settings_in(stage.loaded.target):
        asked = await _asked(stage, {"default_provider": "two"})
        if asked is not None:
            stage.expect(asked == "two", "O25", f"with default_provider 'two' the provider {asked!r} was asked")


async def _asked(stage: Stage, config: dict[str, Any]) -> str | None:
    async with stage.scene(config={**stage.loaded.config, **config}) as scene:
        if scene.instance is None:
            return None
        turn = await World(scene, {**ONE_TOOL, "providers": 3}).play_turn()
        return next((each.name for _, each in turn.all("asked")), None)


@check("O27", "O28", kind="behaviour", types=LOOPS)
async def tells_how_it_goes(stage: Stage) -> None:
    """Listens to a plain turn for content_block events, prompt:submit and prompt:complete."""
    async with stage.scene() as scene:
        if scene.instance is None:
            return
        turn = await World(scene, {**ONE_TOOL, "streams": True}).play_turn()
        if turn.outcome is None or not turn.outcome.returned:
            return
        names = [each.name for _, each in turn.events]
        passed_on = any(name.startswith("content_block:") for name in names)
        if not passed_on and not _generates(scene.instance):
            stage.fault("O27", "no content_block event was emitted, and no member is an async generator")
        submitted, stored = turn.places("event", "prompt:submit"), turn.places("stored", "user")
        stage.expect(submitted, "O28", "prompt:submit was not emitted")
        if submitted and stored and stored[0] < submitted[0]:
            stage.fault("O28", "prompt:submit was emitted after the prompt had been stored")
        complete, answered = turn.places("event", "prompt:complete"), turn.places("answered")
        stage.expect(complete, "O28", "prompt:complete was not emitted")
        if complete and answered and complete[0] < answered[-1]:
            stage.fault("O28", "prompt:complete was emitted before the answer")


def _generates(instance: Any) -> bool:
    return any(inspect.isasyncgenfunction(getattr(type(instance), name, None)) for name in dir(type(instance)))
