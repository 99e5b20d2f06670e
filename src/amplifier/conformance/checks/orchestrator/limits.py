"""Loops and their limits: a model that never stops, a turn that is cancelled at every moment.

The other promises of loops are in `_orchestrator`.
"""

from __future__ import annotations

import random
from typing import Any

import anyio.lowlevel

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CALL_SECONDS, CANCEL_GRACE, CheckContext, MountedModule
from amplifier.conformance.harness.scripted_turns import RecordedTurn, ScriptedSession, turn_violations
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
async def has_a_limit(ctx: CheckContext) -> None:
    """Lets the model ask for a tool again and again, and counts; then once more after turns that ended otherwise."""
    await get_to_know(ctx)
    async with ctx.mount() as mounted:
        if mounted.instance is None:
            return
        first = await _count(mounted, ctx)
        if first > MOST_CALLS:
            ctx.fault("O23", f"a model that never stops was asked more than {MOST_CALLS} times in one turn")
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


async def _count(mounted: MountedModule, judged: CheckContext | None = None) -> int:
    """How often a model that never stops is asked; if told so, the end of that turn is looked at as well."""
    session = EndlessWorld(mounted, ONE_TOOL)
    turn = await session.run_turn(seconds=_SECONDS)
    turn.is_limited = True
    if judged is not None and session.gave_up is None:
        wanted = {"O5", "O6", "O11", "O12", "O13"}
        report(judged, (each for each in turn_violations(turn) if each[0] in wanted), session, turn)
    session.detach()
    return len(turn.positions("asked"))


class EndlessWorld(ScriptedSession):
    """A session whose model asks for a tool again and again; too often is too often."""

    is_endless = True

    def next_answer(self, is_offered_tools: bool = False) -> Any:
        """Once more."""
        if self.asked > MOST_CALLS:
            self.give_up("O23")
        return super().next_answer(is_offered_tools)


# ── cancellation ──


@check("O5", "O6", "O11", "O12", "O13", "A7", "A8", "A9", kind="cancellation", types=LOOPS)
async def keeps_the_transcript_when_cancelled(ctx: CheckContext) -> None:
    """Cancels turns while models, tools, hooks and context work, at each suspension, and reads the transcript."""
    await get_to_know(ctx)
    for name, case in CANCELLED.items():
        async with ctx.mount() as mounted:
            if mounted.instance is None:
                return
            sweep = _Sweep(ctx, name, ScriptedSession(mounted, case))
            outcome = await mounted.call(cancel_at, _NEVER, sweep.session.execute_unguarded, False)
            if not outcome.returned:
                what = f"the turn with {name} does not end by itself, so it was not cancelled at every moment"
                ctx.notes.append(what)
                continue
            for k in _chosen(sweep.session.suspensions, ctx):
                if not await sweep.at_moment(k):
                    return
            for k in _chosen(outcome.value.suspensions, ctx):
                if not await sweep.at_suspension(k):
                    return
            await sweep.expect_whole()


def _chosen(count: int, ctx: CheckContext) -> list[int]:
    points = range(1, count + 1)
    most = ctx.points * 4
    return list(points) if count <= most else sorted(random.Random(ctx.seed).sample(points, most))


class _Sweep:
    """The same turn of the same loop, cancelled again and again; each time it must have survived the time before."""

    def __init__(self, ctx: CheckContext, name: str, session: ScriptedSession) -> None:
        self._ctx = ctx
        self._name = name
        self._tried: set[str] = set()
        self._last = ""
        self.session = session

    async def at_moment(self, k: int) -> bool:
        """Cancel while a double waits; at moments of a new kind often enough for slots to run out."""
        given = {"turn": self._name, "moment": k}
        repeats = 0
        while True:
            self.session.reset()
            turn, repeats = await self.session.run_and_cancel(k), repeats + 1
            where = self.session.cancelled_where
            if not where:
                return self._judge_uncancelled(turn)
            self._last = where
            self._judge_outcome(turn, given, where)
            await self._expect_rest(given, where)
            if self._ctx.faults:
                return False
            wanted = REPEATS if where.startswith(("tool", "provider.")) else 3
            if repeats >= (1 if where in self._tried else wanted):
                self._tried.add(where)
                return True

    async def at_suspension(self, k: int) -> bool:
        """Cancel while the task of the turn itself waits, be it for code of its own."""
        given = {"turn": self._name, "suspension": k}
        self.session.reset()
        with self._ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", f"a turn with {self._name}"):
            try:
                trial = await cancel_at(k, self.session.execute_unguarded)
            except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                what = f"a turn was cancelled, and execute raised {type(error).__name__}: {str(error)[:200]}"
                self._ctx.fault("A7", what, given=given, cancelled_at=self._last, error=error)
                return False
        if trial.fired:
            self._last = trial.where
            if not trial.returned:
                self._judge_transcript(self.session.turn, given, trial.where)
            await self._expect_rest(given, trial.where)
        return not self._ctx.faults

    async def expect_whole(self) -> None:
        """The loop must still work."""
        self.session.reset()
        self._judge_uncancelled(await self.session.run_turn())

    def _judge_uncancelled(self, turn: RecordedTurn) -> bool:
        outcome = turn.outcome
        if outcome is not None and outcome.returned:
            return True
        what = f"after a cancelled turn execute {outcome}"
        self._ctx.fault("A9", what, cancelled_at=self._last, error=None if outcome is None else outcome.error)
        return False

    def _judge_outcome(self, turn: RecordedTurn, given: dict[str, Any], where: str) -> None:
        outcome = turn.outcome
        if outcome is None:
            self._judge_transcript(turn, given, where)
        elif outcome.kind == "raised":
            what = f"a turn was cancelled, and execute {outcome}"
            self._ctx.fault("A7", what, given=given, cancelled_at=where, error=outcome.error)
        elif self.session.was_delivered:
            what = "a turn was cancelled, and execute returned all the same"
            self._ctx.fault("A7", what, given=given, cancelled_at=where)

    def _judge_transcript(self, turn: RecordedTurn, given: dict[str, Any], where: str) -> None:
        wanted = {"O5", "O6", "O11", "O12", "O13"}
        for clause, what in turn_violations(turn):
            if clause in wanted:
                wanted.discard(clause)
                self._ctx.fault(clause, what, given=given, cancelled_at=where)

    async def _expect_rest(self, given: dict[str, Any], where: str) -> None:
        """What a turn started ends with it; whatever happens afterwards is its ghost."""
        turn = self.session.turn
        ended = len(turn.log)
        for _ in range(_SETTLING_STEPS if self.session.running else 2):
            await anyio.lowlevel.checkpoint()
        ghosts = [each for each in turn.log[ended:] if each.kind in _DEEDS]
        if ghosts or self.session.running:
            deed = f"{ghosts[0].name!r} {_DEEDS[ghosts[0].kind]}" if ghosts else "a tool still ran"
            what = f"a turn was cancelled and had ended, and afterwards {deed}"
            self._ctx.fault("A8", what, given=given, cancelled_at=where)
