"""Loops and their limits: a model that never stops, a turn that is cancelled at every moment.

The other promises of loops are in `_orchestrator`.
"""

from __future__ import annotations

import random
from typing import Any

import anyio.lowlevel

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CALL_SECONDS, IGNORED_AFTER, Scene, Stage
from amplifier.conformance.harness.scripted_turns import PlayedTurn, World, complaints_about
from amplifier.testing import cancel_at

from .turns import LOOPS, ONE_TOOL, get_to_know, report

MOST_CALLS = 1_500
"""Model calls of one turn that count as a turn without a limit."""
_SECONDS = 60.0
_SETTLING_STEPS = 10
_DEEDS = {
    "started": "was started",
    "returned": "returned",
    "raised": "raised",
    "asked": "was asked",
    "answered": "answered",
    "stored": "was stored",
}
_NEVER = 1_000_000_000
REPEATS = 12
"""How often a turn is cancelled while a tool or a model works, before the loop has to work again: slots get lost singly."""

_SAID = {"blocks": [{"say": "Done. "}]}
_PARALLEL: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Do both.",
            "answers": [
                {"blocks": [{"think": "hm"}, {"call": "alpha", "steps": 2, "idle": 40}, {"call": "beta", "steps": 0}]},
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


@check("O5", "O6", "O11", "O12", "O13", "O23", kind="behaviour", types=LOOPS)
async def has_a_limit(stage: Stage) -> None:
    """Lets the model ask for a tool again and again, and counts; then once more after turns that ended otherwise."""
    await get_to_know(stage)
    async with stage.scene() as scene:
        if scene.instance is None:
            return
        first = await _count(scene, stage)
        if first > MOST_CALLS:
            stage.fault("O23", f"a model that never stops was asked more than {MOST_CALLS} times in one turn")
            return
        second = await _count(scene)
    async with stage.scene() as scene:
        if await _count(scene) != first:
            return  # a limit of another kind, such as a time
    if second < first:
        stage.fault("O23", f"in a first turn the model was asked {first} times, in the next one {second} times")
        return
    async with stage.scene() as scene:
        for error in (None, "NotFoundError", None):
            answers = [{"blocks": [{"call": "alpha"}]}, {"error": error} if error else _SAID]
            world = World(scene, {"turns": [{"prompt": "Go.", "answers": answers}]})
            await world.play()
            world.leave()
        world = World(scene, ONE_TOOL)
        await world.play_and_cancel(8)
        world.leave()
        after = await _count(scene)
        if after < first:
            what = f"at first the model was asked {first} times; after turns of other kinds only {after} times"
            stage.fault("O23", what)


async def _count(scene: Scene, judged: Stage | None = None) -> int:
    """How often a model that never stops is asked; if told so, the end of that turn is looked at as well."""
    world = EndlessWorld(scene, ONE_TOOL)
    turn = await world.play_turn(seconds=_SECONDS)
    turn.is_limited = True
    if judged is not None and world.gave_up is None:
        wanted = {"O5", "O6", "O11", "O12", "O13"}
        report(judged, (each for each in complaints_about(turn) if each[0] in wanted), world, turn)
    world.leave()
    return len(turn.places("asked"))


class EndlessWorld(World):
    """A world whose model asks for a tool again and again; too often is too often."""

    is_endless = True

    def next_answer(self, is_offered_tools: bool = False) -> Any:
        """Once more."""
        if self.asked > MOST_CALLS:
            self.give_up("O23")
        return super().next_answer(is_offered_tools)


# ── cancellation ──


@check("O5", "O6", "O11", "O12", "O13", "A7", "A8", "A9", kind="cancellation", types=LOOPS)
async def keeps_the_transcript_when_cancelled(stage: Stage) -> None:
    """Cancels turns while models, tools, hooks and context work, at each suspension, and reads the transcript."""
    await get_to_know(stage)
    for name, case in CANCELLED.items():
        async with stage.scene() as scene:
            if scene.instance is None:
                return
            sweep = _Sweep(stage, name, World(scene, case))
            outcome = await scene.call(cancel_at, _NEVER, sweep.world.run_bare, False)
            if not outcome.returned:
                what = f"the turn with {name} does not end by itself, so it was not cancelled at every moment"
                stage.notes.append(what)
                continue
            for k in _chosen(sweep.world.moments, stage):
                if not await sweep.at_moment(k):
                    return
            for k in _chosen(outcome.value.suspensions, stage):
                if not await sweep.at_suspension(k):
                    return
            await sweep.expect_whole()


def _chosen(count: int, stage: Stage) -> list[int]:
    points = range(1, count + 1)
    most = stage.points * 4
    return list(points) if count <= most else sorted(random.Random(stage.seed).sample(points, most))


class _Sweep:
    """The same turn of the same loop, cancelled again and again; each time it must have survived the time before."""

    def __init__(self, stage: Stage, name: str, world: World) -> None:
        self._stage = stage
        self._name = name
        self._tried: set[str] = set()
        self._last = ""
        self.world = world

    async def at_moment(self, k: int) -> bool:
        """Cancel while a double waits; at moments of a new kind often enough for slots to run out."""
        given = {"turn": self._name, "moment": k}
        repeats = 0
        while True:
            self.world.forget()
            turn, repeats = await self.world.play_and_cancel(k), repeats + 1
            where = self.world.cancelled_where
            if not where:
                return self._judge_uncancelled(turn)
            self._last = where
            self._judge_outcome(turn, given, where)
            await self._expect_rest(given, where)
            if self._stage.faults:
                return False
            wanted = REPEATS if where.startswith(("tool", "provider.")) else 3
            if repeats >= (1 if where in self._tried else wanted):
                self._tried.add(where)
                return True

    async def at_suspension(self, k: int) -> bool:
        """Cancel while the task of the turn itself waits, be it for code of its own."""
        given = {"turn": self._name, "suspension": k}
        self.world.forget()
        with self._stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", f"a turn with {self._name}"):
            try:
                trial = await cancel_at(k, self.world.run_bare)
            except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                what = f"a turn was cancelled, and execute raised {type(error).__name__}: {str(error)[:200]}"
                self._stage.fault("A7", what, given=given, cancelled_at=self._last, error=error)
                return False
        if trial.fired:
            self._last = trial.where
            if not trial.returned:
                self._judge_transcript(self.world.turn, given, trial.where)
            await self._expect_rest(given, trial.where)
        return not self._stage.faults

    async def expect_whole(self) -> None:
        """The loop must still work."""
        self.world.forget()
        self._judge_uncancelled(await self.world.play_turn())

    def _judge_uncancelled(self, turn: PlayedTurn) -> bool:
        outcome = turn.outcome
        if outcome is not None and outcome.returned:
            return True
        what = f"after a cancelled turn execute {outcome}"
        self._stage.fault("A9", what, cancelled_at=self._last, error=None if outcome is None else outcome.error)
        return False

    def _judge_outcome(self, turn: PlayedTurn, given: dict[str, Any], where: str) -> None:
        outcome = turn.outcome
        if outcome is None:
            self._judge_transcript(turn, given, where)
        elif outcome.kind == "raised":
            what = f"a turn was cancelled, and execute {outcome}"
            self._stage.fault("A7", what, given=given, cancelled_at=where, error=outcome.error)
        elif self.world.was_delivered:
            what = "a turn was cancelled, and execute returned all the same"
            self._stage.fault("A7", what, given=given, cancelled_at=where)

    def _judge_transcript(self, turn: PlayedTurn, given: dict[str, Any], where: str) -> None:
        wanted = {"O5", "O6", "O11", "O12", "O13"}
        for clause, what in complaints_about(turn):
            if clause in wanted:
                wanted.discard(clause)
                self._stage.fault(clause, what, given=given, cancelled_at=where)

    async def _expect_rest(self, given: dict[str, Any], where: str) -> None:
        """What a turn started ends with it; whatever happens afterwards is its ghost."""
        turn = self.world.turn
        ended = len(turn.happened)
        for _ in range(_SETTLING_STEPS if self.world.running else 2):
            await anyio.lowlevel.checkpoint()
        ghosts = [each for each in turn.happened[ended:] if each.kind in _DEEDS]
        if ghosts or self.world.running:
            deed = f"{ghosts[0].name!r} {_DEEDS[ghosts[0].kind]}" if ghosts else "a tool still ran"
            what = f"a turn was cancelled and had ended, and afterwards {deed}"
            self._stage.fault("A8", what, given=given, cancelled_at=where)
