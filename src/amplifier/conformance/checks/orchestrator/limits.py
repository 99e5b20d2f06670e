"""Checks of loops with many model calls or many cancellations: the iteration limit, and cancellation at every suspension."""

from __future__ import annotations

import random
from typing import Any

import anyio.lowlevel

from amplifier.conformance.checks.orchestrator.turns import LOOPS, ONE_TOOL, report, run_first_turn
from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.cancelled import NEVER
from amplifier.conformance.oracles.turn_rules import turn_violations
from amplifier.conformance.target.calls import reraise_own_cancellation
from amplifier.conformance.target.mounted import CheckContext, MountedModule
from amplifier.conformance.target.turns.player import MAX_ENDLESS_MODEL_CALLS
from amplifier.conformance.target.turns.record import RecordedTurn
from amplifier.conformance.target.turns.session import ScriptedSession
from amplifier.testing import cancel_at

_SECONDS = 60.0
_SETTLING_STEPS = 10
_ACTIONS = {
    "started": "was started",
    "returned": "returned",
    "raised": "raised",
    "asked": "was asked",
    "answered": "answered",
    "stored": "was stored",
}
REPEATS = 12
"""How often a turn is cancelled while a tool or a model works, since each cancellation may lose one slot."""
_TRANSCRIPT = ("O5", "O6", "O11", "O12", "O13")
"""The clauses that a turn cut short has to keep."""

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
async def has_a_limit(ctx: CheckContext) -> None:
    """Lets the model call a tool in every answer, counts its calls, and repeats that after turns that ended otherwise."""
    await run_first_turn(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        first = await _count(mounted, ctx)
        if first > MAX_ENDLESS_MODEL_CALLS:
            ctx.fault(
                "O23", f"a model that never stops was asked more than {MAX_ENDLESS_MODEL_CALLS} times in one turn"
            )
            return
        second = await _count(mounted)
    async with ctx.mount() as mounted:
        if await _count(mounted) != first:
            return  # a limit of another kind, such as a time
    if second < first:
        ctx.fault("O23", f"in a first turn the model was asked {first} times, in the next one {second} times")
        return
    async with ctx.mount() as mounted:
        for error in (None, "NotFoundError", None):
            answers = [{"blocks": [{"call": "alpha"}]}, {"error": error} if error else _SAID]
            session = ScriptedSession(mounted, {"turns": [{"prompt": "Go.", "answers": answers}]})
            await session.run_turns()
            session.detach()
        session = ScriptedSession(mounted, ONE_TOOL)
        await session.run_and_cancel(8)
        session.detach()
        after = await _count(mounted)
        if after < first:
            what = f"at first the model was asked {first} times; after turns of other kinds only {after} times"
            ctx.fault("O23", what)


async def _count(mounted: MountedModule, checked: CheckContext | None = None) -> int:
    """How often a model that never stops is called; with ``checked``, the transcript of that turn is checked as well."""
    session = ScriptedSession(mounted, ONE_TOOL, endless=True)
    turn = await session.run_turn(seconds=_SECONDS)
    turn.is_limited = True
    if checked is not None and session.gave_up is None:
        report(checked, (each for each in turn_violations(turn) if each[0] in _TRANSCRIPT), session, turn)
    session.detach()
    return len(turn.positions("asked"))


# ── cancellation ──


@check("O5", "O6", "O11", "O12", "O13", "A7", "A8", "A9", kind="cancellation", types=LOOPS)
async def keeps_the_transcript_when_cancelled(ctx: CheckContext) -> None:
    """Cancels turns at each suspension of models, tools, hooks, context and loop, and reads the transcript."""
    await run_first_turn(ctx)
    for name, case in CANCELLED.items():
        async with ctx.mount() as mounted:
            if mounted.instance is None:
                return
            sweep = _Sweep(ctx, name, ScriptedSession(mounted, case))
            outcome = await mounted.call(cancel_at, NEVER, sweep.session.execute_unguarded, False)
            if not outcome.returned:
                what = f"the turn with {name} does not end by itself, so it was not cancelled at every suspension"
                ctx.notes.append(what)
                continue
            for k in _chosen(ctx, sweep.session.suspensions):
                if not await sweep.cancel_in_double(k):
                    return
            for k in _chosen(ctx, outcome.value.suspensions):
                if not await sweep.cancel_in_loop(k):
                    return
            await sweep.check_works()


def _chosen(ctx: CheckContext, count: int) -> list[int]:
    points, most = range(1, count + 1), ctx.points * 4
    return list(points) if count <= most else sorted(random.Random(ctx.seed).sample(points, most))


class _Sweep:
    """The same turn of the same loop, cancelled again and again."""

    def __init__(self, ctx: CheckContext, name: str, session: ScriptedSession) -> None:
        self._ctx = ctx
        self._name = name
        self._tried: set[str] = set()
        self._last = ""
        self.session = session

    async def cancel_in_double(self, k: int) -> bool:
        """Cancel at the k-th suspension of a double; in a new kind of double often enough for slots to run out."""
        given = {"turn": self._name, "suspension of a double": k}
        repeats = 0
        while True:
            self.session.reset()
            turn, repeats = await self.session.run_and_cancel(k), repeats + 1
            where = self.session.cancelled_where
            if not where:
                return self._check_uncancelled(turn)
            self._last = where
            self._check_outcome(turn, given, where)
            await self._check_ended(given, where)
            if self._ctx.faults:
                return False
            wanted = REPEATS if where.startswith(("tool", "provider.")) else 3
            if repeats >= (1 if where in self._tried else wanted):
                self._tried.add(where)
                return True

    async def cancel_in_loop(self, k: int) -> bool:
        """Cancel at the k-th suspension of the task that runs the turn."""
        given = {"turn": self._name, "suspension": k}
        self.session.reset()
        with self._ctx.alarm(what=f"a turn with {self._name}"):
            try:
                trial = await cancel_at(k, self.session.execute_unguarded)
            except BaseException as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                reraise_own_cancellation(error)
                what = f"a turn was cancelled, and execute raised {type(error).__name__}: {str(error)[:200]}"
                self._ctx.fault("A7", what, given=given, cancelled_at=self._last, error=error)
                return False
        if trial.fired:
            self._last = trial.where
            if not trial.returned:
                self._check_transcript(self.session.turn, given, trial.where)
            await self._check_ended(given, trial.where)
        return not self._ctx.faults

    async def check_works(self) -> None:
        """Run a turn without cancelling it."""
        self.session.reset()
        self._check_uncancelled(await self.session.run_turn())

    def _check_uncancelled(self, turn: RecordedTurn) -> bool:
        outcome = turn.outcome
        if outcome is not None and outcome.returned:
            return True
        what = f"after a cancelled turn execute {outcome}"
        self._ctx.fault("A9", what, cancelled_at=self._last, error=None if outcome is None else outcome.error)
        return False

    def _check_outcome(self, turn: RecordedTurn, given: dict[str, Any], where: str) -> None:
        outcome = turn.outcome
        if outcome is None:
            self._check_transcript(turn, given, where)
        elif outcome.kind == "raised":
            what = f"a turn was cancelled, and execute {outcome}"
            self._ctx.fault("A7", what, given=given, cancelled_at=where, error=outcome.error)
        elif self.session.was_delivered:
            what = "a turn was cancelled, and execute returned all the same"
            self._ctx.fault("A7", what, given=given, cancelled_at=where)

    def _check_transcript(self, turn: RecordedTurn, given: dict[str, Any], where: str) -> None:
        wanted = set(_TRANSCRIPT)
        for clause, what in turn_violations(turn):
            if clause in wanted:
                wanted.discard(clause)
                self._ctx.fault(clause, what, given=given, cancelled_at=where)

    async def _check_ended(self, given: dict[str, Any], where: str) -> None:
        """Report whatever the turn started and did not end with it."""
        turn = self.session.turn
        ended = len(turn.log)
        for _ in range(_SETTLING_STEPS if self.session.running else 2):
            await anyio.lowlevel.checkpoint()
        late = [each for each in turn.log[ended:] if each.kind in _ACTIONS]
        if late or self.session.running:
            action = f"{late[0].name!r} {_ACTIONS[late[0].kind]}" if late else "a tool still ran"
            what = f"a turn was cancelled and had ended, and afterwards {action}"
            self._ctx.fault("A8", what, given=given, cancelled_at=where)
