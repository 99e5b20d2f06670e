"""Loops and their limits: a model that never stops, a turn that is cancelled at every moment.

The other promises of loops are in `_orchestrator`.
"""

from __future__ import annotations

import random
from typing import Any

import anyio.lowlevel

from amplifier.testing import cancel_at

from .._registry import check
from .._scene import CALL_SECONDS, IGNORED_AFTER, Scene, Stage
from .._turns import PlayedTurn, World, complaints_about
from ._orchestrator import LOOPS, ONE_TOOL

MOST_CALLS = 1_500
"""Model calls of one turn that count as a turn without a limit."""
_SECONDS = 60.0
_SETTLING_STEPS = 5
REPEATS = 12
"""How often a turn is cancelled at one kind of moment before the loop has to work again: slots may be lost one by one."""

_SAID = {"blocks": [{"say": "Done. "}]}
_PARALLEL: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Do both.",
            "answers": [
                {"blocks": [{"think": "hm"}, {"call": "alpha", "steps": 3}, {"call": "beta", "steps": 1}]},
                {"blocks": [{"call": "gamma", "does": "raises ValueError no"}, {"call": "alpha", "does": "unknown"}]},
                _SAID,
            ],
        }
    ]
}
_HOOKED: dict[str, Any] = {
    "streams": True,
    "turns": [
        {
            "prompt": "Do what you may.",
            "answers": [
                {
                    "blocks": [
                        {"call": "alpha", "pre": "ask yes", "post": "inject"},
                        {"call": "beta", "pre": "deny"},
                        {"call": "gamma", "pre": "inject", "post": "whisper", "steps": 1},
                    ]
                },
                _SAID,
            ],
        }
    ],
}
CANCELLED = {"parallel tools": _PARALLEL, "hooks that object": _HOOKED}


# ── the limit ──


@check("O23", kind="behaviour", types=LOOPS)
async def has_a_limit(stage: Stage) -> None:
    """Lets the model ask for a tool again and again, and counts; then once more after turns that ended otherwise."""
    async with stage.scene() as scene:
        if scene.instance is None:
            return
        first = await _count(scene)
        if first > MOST_CALLS:
            stage.fault("O23", f"a model that never stops was asked more than {MOST_CALLS} times in one turn")
            return
        second = await _count(scene)
        if second < first:
            stage.fault("O23", f"in a first turn the model was asked {first} times, in the next one {second} times")
            return
    async with stage.scene() as scene:
        for error in (None, "NotFoundError", None):
            answers = [{"blocks": [{"call": "alpha"}]}, {"error": error} if error else _SAID]
            await World(scene, {"turns": [{"prompt": "Go.", "answers": answers}]}).play()
        await World(scene, ONE_TOOL).play_and_cancel(8)
        after = await _count(scene)
        if after < first:
            what = f"at first the model was asked {first} times; after turns of other kinds only {after} times"
            stage.fault("O23", what)


async def _count(scene: Scene) -> int:
    world = EndlessWorld(scene, ONE_TOOL)
    turn = await world.play_turn(seconds=_SECONDS)
    return len(turn.places("asked"))


class EndlessWorld(World):
    """A world whose model asks for a tool again and again; too often is too often."""

    is_endless = True

    def next_answer(self) -> Any:
        """Once more."""
        if len(self.turn.places("asked")) > MOST_CALLS:
            self.give_up()
        return super().next_answer()


# ── cancellation ──


@check("O5", "O6", "O11", "O12", "O13", "A7", "A8", "A9", kind="cancellation", types=LOOPS)
async def keeps_the_transcript_when_cancelled(stage: Stage) -> None:
    """Cancels turns while models, tools, hooks and context work, at each suspension, and reads the transcript."""
    for name, case in CANCELLED.items():
        moments, suspensions, usual = await _undisturbed(stage, case)
        if not usual:
            stage.notes.append(f"the turn with {name} does not end by itself, so it was not cancelled at every moment")
            continue
        tried: set[str] = set()
        for k in _chosen(moments, stage):
            await _cancel_at_moment(stage, name, case, k, tried)
            if stage.faults:
                return
        for k in _chosen(suspensions, stage):
            await _cancel_at_suspension(stage, name, case, k)
            if stage.faults:
                return


def _chosen(count: int, stage: Stage) -> list[int]:
    points = range(1, count + 1)
    most = stage.points * 3
    return list(points) if count <= most else sorted(random.Random(stage.seed).sample(points, most))


async def _undisturbed(stage: Stage, case: dict[str, Any]) -> tuple[int, int, bool]:
    """How many moments the turn has, how often its own task suspends, and whether it ends by itself."""
    async with stage.scene() as scene:
        if scene.instance is None:
            return 0, 0, False
        world = World(scene, case)
        outcome = await scene.call(cancel_at, 1_000_000_000, world.run_bare, False)
        if not outcome.returned:
            return 0, 0, False
        return world.moments, outcome.value.suspensions, True


async def _cancel_at_moment(stage: Stage, name: str, case: dict[str, Any], k: int, tried: set[str]) -> None:
    given = {"turn": name, "moment": k}
    async with stage.scene() as scene:
        world = World(scene, case)
        repeats = 0
        while True:
            turn, repeats = await world.play_and_cancel(k), repeats + 1
            where = world.cancelled_where
            if not where:
                return
            _judge_cancelled(stage, world, turn, given)
            await _expect_rest(stage, world, given, where)
            if stage.faults:
                return
            if repeats == (1 if where in tried else REPEATS):
                break
            world.forget()
        tried.add(where)
        world.forget()
        after = await world.play_turn()
        if after.outcome is None or not after.outcome.returned:
            error = None if after.outcome is None else after.outcome.error
            what = f"after {repeats} cancelled turns execute {after.outcome}"
            stage.fault("A9", what, given=given, cancelled_at=where, error=error)


def _judge_cancelled(stage: Stage, world: World, turn: PlayedTurn, given: dict[str, Any]) -> None:
    outcome, where = turn.outcome, world.cancelled_where
    if outcome is not None and outcome.kind == "raised":
        what = f"a turn was cancelled, and execute {outcome}"
        stage.fault("A7", what, given=given, cancelled_at=where, error=outcome.error)
    elif outcome is not None and world.was_delivered:
        stage.fault("A7", "a turn was cancelled, and execute returned all the same", given=given, cancelled_at=where)
    elif outcome is None:
        _judge(stage, turn, given, where)


def _judge(stage: Stage, turn: PlayedTurn, given: dict[str, Any], where: str) -> None:
    wanted = {"O5", "O6", "O11", "O12", "O13"}
    for clause, what in complaints_about(turn):
        if clause in wanted:
            wanted.discard(clause)
            stage.fault(clause, what, given=given, cancelled_at=where)


async def _expect_rest(stage: Stage, world: World, given: dict[str, Any], where: str) -> None:
    for _ in range(_SETTLING_STEPS):
        if not world.running:
            return
        await anyio.lowlevel.checkpoint()
    what = "a turn was cancelled and had ended, and a tool that it had started ran on"
    stage.fault("A8", what, given=given, cancelled_at=where)


async def _cancel_at_suspension(stage: Stage, name: str, case: dict[str, Any], k: int) -> None:
    async with stage.scene() as scene:
        world = World(scene, case)
        given = {"turn": name, "suspension": k}
        with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", f"a turn with {name}"):
            try:
                trial = await cancel_at(k, world.run_bare)
            except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                what = f"a turn was cancelled and raised {type(error).__name__}: {str(error)[:200]}"
                stage.fault("A7", what, given=given, error=error)
                return
        if trial.fired and not trial.returned:
            _judge(stage, world.turn, given, trial.where)
