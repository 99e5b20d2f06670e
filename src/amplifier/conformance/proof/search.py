"""The search for a case in which a plan breaks a law, and its reduction to a small one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
from hypothesis import Phase, find
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier._internal.json import JSON
from amplifier.conformance.engine.cases import quiet_settings
from amplifier.conformance.engine.job import reject_unknown, require_packages
from amplifier.conformance.inputs.values import sample_inputs
from amplifier.conformance.proof.world import CHOICES, FAULTY, KINDS, LAWS, Case, PlanWorld
from amplifier.conformance.target.calls import child_processes, machine_load
from amplifier.conformance.target.process import (
    Resources,
    mark_descendants,
    remaining,
    started_processes,
)
from amplifier.errors import AmplifierError, ExecutionCancelled
from amplifier.loading.discovery import SEARCH_PATH_VARIABLE
from amplifier.plan import merge_plans
from amplifier.plan.dicts import module_hashes, places_of
from amplifier.testing import SweepReport, Violation, cancel_everywhere
from amplifier.testing.virtual_time import TimeWatch

_MODES = {"asyncio": ("asyncio-scope", "asyncio-native", "asyncio-native-twice"), "trio": ("trio",)}
_SWEEP_SHARE = 0.5
"""The part of the budget for the sweep of the plain conversation."""
_REDUCTION_SHARE = 0.3
"""The part of the budget for the reduction of one finding, if necessary beyond the whole."""
_CASES_AT_ONCE = 50
"""Cases drawn between two looks at the budget."""
_MAX_MOVES = 12
_FILE = "notes.txt"
_PLAIN = {"orchestrator": "loop-basic", "context": "context-simple"}


@attrs.frozen(kw_only=True)
class Broken:
    """A law that a plan breaks.

    Attributes:
        law: One of `LAWS`.
        what: The way in which it is broken.
        case: The smallest conversation, faults and cancellation that break it.
        modules: The fewest modules of the plan with which it breaks.
        where: The await at which the cancellation came, if one did.
    """

    law: str
    what: str
    case: Case
    modules: tuple[str, ...]
    where: str

    def lines(self) -> list[str]:
        """Return the finding as text."""
        at = f", cancelled at {self.where}" if self.case["cancel"]["at"] else ""
        backend = self.case["cancel"]["mode"].partition("-")[0]
        return [
            f"{self.law}: {LAWS[self.law]}",
            f"  {self.what}",
            f"  with {', '.join(self.modules)} on {backend}{at}",
            f"  case: {json.dumps(self.case, ensure_ascii=False)}",
        ]


@attrs.define(kw_only=True)
class Proof:
    """The result of the search.

    Attributes:
        seed: The seed of the search.
        broken: Each broken law once.
        trials: The number of sessions that ran.
        seconds: The duration of the search.
        points: By mode, the numbers of cancelled awaits and of all awaits of the plain
            conversation.
    """

    seed: int
    broken: list[Broken] = attrs.field(factory=list)
    trials: int = 0
    seconds: float = 0.0
    points: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    def lines(self) -> list[str]:
        """Return the report as text."""
        verdict = (
            f"{len(self.broken)} of {len(LAWS)} laws broken"
            if self.broken
            else f"all {len(LAWS)} laws hold"
        )
        lines = [f"{verdict} in {self.trials} sessions, {self.seconds:.0f} s (seed {self.seed})"]
        lines += [
            f"  {mode}: cancelled at {done} of {count} awaits"
            for mode, (done, count) in self.points.items()
        ]
        return lines + [line for broken in self.broken for line in ("", *broken.lines())]


def prove_plan(plan: Mapping[str, Any], **options: Any) -> Proof:
    """Raise if `examine_plan` finds a broken law. It takes the same options.

    Raises:
        AssertionError: A law is broken. The text is the report.
        AmplifierError: The plan can't be run at all.
    """
    proof = examine_plan(plan, **options)
    if proof.broken:
        raise AssertionError("\n".join(proof.lines()))
    return proof


def examine_plan(
    plan: Mapping[str, Any],
    *,
    seconds: float = 30.0,
    sessions: int | None = None,
    seed: int = 0,
    backends: Sequence[str] = ("asyncio", "trio"),
    case: Case | None = None,
    alarm: bool = False,
) -> Proof:
    """Run a plan's modules together under drawn conversations, faults and cancellations.

    The modules run in this process with a scripted model. The working directory and the home are a
    fresh folder. Time is virtual.

    Args:
        plan: The mount plan, which may hold functions and objects. Its providers are not used.
        seconds: The time for the search. A late finding is still reduced.
        sessions: The number of sessions to search instead, however long they take. Then equal
            seeds find the same.
        seed: Equal seeds draw equal cases.
        backends: The backends to run it on.
        case: Play only this case.
        alarm: True to interrupt a module that blocks the event loop, and name its line. This takes
            the process's alarm signal, so it is for a process with no other work, such as the
            command ``amplifier plan prove``. Without it such a module blocks the search.

    Raises:
        AmplifierError: The plan can't be run at all.
    """
    reject_unknown(backends)
    require_packages(backends)
    absolute = _with_absolute_sources(plan)
    with _elsewhere():
        search = _Search(
            absolute,
            (seconds, sessions),
            seed,
            [mode for backend in backends for mode in _MODES[backend]],
            alarm,
        )
        search.run(case)
    return search.proof


@attrs.frozen
class _Result:
    laws: dict[str, str]
    where: str
    points: int


class _Search:
    def __init__(
        self,
        plan: Mapping[str, Any],
        budget: tuple[float, int | None],
        seed: int,
        modes: Sequence[str],
        alarm: bool,
    ) -> None:
        self._plan = plan
        self._alarm = alarm
        self._budget = budget
        self._modes = modes
        self._random = random.Random(seed)
        self._resources = Resources()
        self._began = time.monotonic()
        self.proof: Proof = Proof(seed=seed)

    def run(self, case: Case | None) -> None:
        """Search until the budget is used up, or play one case."""
        if case is not None:
            self._take(self._trial(case), case)
        else:
            tools = self._tools()
            # The time of the imports until now isn't counted.
            self._began = time.monotonic()
            self._sweep(_plain_case(tools))
            self._draw(
                _cases(tools, self._modes, max(count for _, count in self.proof.points.values()))
            )
        self.proof.seconds = time.monotonic() - self._began

    def _used(self) -> float:
        """Return the used part of the budget, where 1 is all of it."""
        seconds, sessions = self._budget
        return (
            (time.monotonic() - self._began) / seconds
            if sessions is None
            else self.proof.trials / sessions
        )

    def _tools(self) -> dict[str, list[dict[str, JSON]]]:
        """Return the tools that the plan offers to its model, with some inputs of each."""
        world = PlanWorld(self._plan, {"turns": []})
        report = _run(
            world, {"mode": self._modes[0], "at": 0, "second": None}, self.proof.seed, self._alarm
        )
        if isinstance(report, str):
            raise AmplifierError(f"the plan cannot be run: the event loop was blocked at {report}")
        if not world.provider.requests:
            details = "; ".join(violation.detail for violation in report.violations)
            raise AmplifierError(
                f"the plan cannot be run: {details or 'its loop does not ask its provider'}"
            )
        offered = world.provider.requests[0].tools or ()
        return {
            tool.name: sample_inputs(tool.parameters, _FILE)
            for tool in offered
            if tool.name != FAULTY
        }

    def _sweep(self, plain: Case) -> None:
        """Cancel the plain conversation at every await, in a drawn order, within the budget."""
        left: dict[str, list[int]] = {}
        for mode in self._modes:
            case = {**plain, "cancel": {"mode": mode, "at": 0, "second": None}}
            result = self._trial(case)
            self._take(result, case)
            left[mode] = self._random.sample(range(1, result.points + 1), result.points)
            self.proof.points[mode] = (0, result.points)
        while any(left.values()) and self._used() < _SWEEP_SHARE:
            for mode in [mode for mode in self._modes if left[mode]]:
                second = self._random.choice((1, 2, 3, 5, 8)) if mode.endswith("-twice") else None
                case = {**plain, "cancel": {"mode": mode, "at": left[mode].pop(), "second": second}}
                self._take(self._trial(case), case)
                done, count = self.proof.points[mode]
                self.proof.points[mode] = (done + 1, count)

    def _draw(self, cases: SearchStrategy[Case]) -> None:
        """Let Hypothesis draw cases."""

        def breaks(case: Case) -> bool:
            if self._used() < 1:
                self._take(self._trial(case), case)
            return False

        quiet = quiet_settings(_CASES_AT_ONCE, Phase.generate)
        while self._used() < 1:
            # Hypothesis reports that no case satisfies the condition.
            with contextlib.suppress(HypothesisException):
                find(cases, breaks, settings=quiet, random=random.Random(self._random.random()))

    def _trial(self, case: Case, plan: Mapping[str, Any] | None = None) -> _Result:
        """Play a case."""
        self.proof.trials += 1
        processes = started_processes()
        world = PlanWorld(self._plan if plan is None else plan, case)
        report = _run(world, case["cancel"], self.proof.seed, self._alarm)
        if isinstance(report, str):
            return _Result(
                {"ends": f"the event loop was blocked for {_BLOCKED_SECONDS:g} s at {report}"},
                report,
                0,
            )
        laws = dict(map(_law_of, reversed(report.violations)))
        # The environment marks descendants that aren't children of this process.
        if (
            started_processes() > processes
            and "ends" not in laws
            and remaining(self._resources.left_processes)
        ):
            laws["nothing left"] = "a process that was started in the session runs on after it"
        where = next((violation.where for violation in report.violations), "")
        return _Result(laws, where, sum(report.points.values()))

    # ── reduction ──

    def _take(self, result: _Result, case: Case) -> None:
        """Note the laws that a case is the first to break, each with the smallest such case."""
        known = {broken.law for broken in self.proof.broken}
        for law in [law for law in result.laws if law not in known]:
            plan, least, last = self._reduced(law, case, result)
            modules = tuple(module_hashes({**plan, "providers": []}))
            self.proof.broken.append(
                Broken(law=law, what=last.laws[law], case=least, modules=modules, where=last.where)
            )

    def _reduced(
        self, law: str, case: Case, last: _Result
    ) -> tuple[Mapping[str, Any], Case, _Result]:
        """Leave out one step or module after another while the law is still broken."""
        until = self._used() + _REDUCTION_SHARE
        plan, again = self._plan, True
        while again:
            again = False
            less = [(plan, smaller) for smaller in _with_less(case)] + [
                (fewer, case) for fewer in _with_fewer(plan)
            ]
            # Without a step, the same await has a different number, which is tried last.
            elsewhere = [
                (fewer, moved) for fewer, smaller in less for moved in _cancelled_elsewhere(smaller)
            ]
            for fewer, tried in [*less, *elsewhere]:
                if self._used() > until:
                    break
                result = self._trial(tried, fewer)
                if law in result.laws:
                    plan, case, last, again = fewer, tried, result, True
                    break
        return plan, case, last


def _law_of(violation: Violation) -> tuple[str, str]:
    """Return the law of a finding of the sweep, and its text.

    Findings of the world begin with the law.
    """
    law, _, what = violation.detail.partition(": ")
    return (KINDS[violation.kind], violation.detail) if violation.kind in KINDS else (law, what)


_BLOCKED_SECONDS = 5.0
"""Real seconds after which code that keeps the loop from running is interrupted."""
_IDLE = ("selectors.py", "virtual_time.py", "_io_epoll.py", "_io_kqueue.py", "_io_windows.py")
"""Files in which a loop waits."""


class _Watch(TimeWatch):
    """Lets time pass for processes that a trial starts, and ends a trial that blocks its loop.

    Time is real while such a process runs, because trio's clock can't observe it.

    Attributes:
        blocked: The line that blocked the loop, or an empty text.
    """

    def __init__(self) -> None:
        self._others = child_processes()
        self._last = time.monotonic()
        self.blocked: str = ""

    def is_busy(self) -> bool:
        return not child_processes() <= self._others

    def on_turn(self) -> None:
        self._last = time.monotonic()

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Interrupt the body when it blocks the loop. Only the main thread can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, began = signal.signal(signal.SIGALRM, self._ring), time.monotonic()
        left, interval = signal.setitimer(
            signal.ITIMER_REAL, _BLOCKED_SECONDS / 5, _BLOCKED_SECONDS / 5
        )
        try:
            yield
        finally:
            signal.setitimer(
                signal.ITIMER_REAL,
                max(left - (time.monotonic() - began), 0.001) if left else 0,
                interval,
            )
            signal.signal(signal.SIGALRM, before)

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        stack = [] if frame is None else [caller for caller, _ in traceback.walk_stack(frame)]
        if any(caller.f_code.co_filename.endswith(_IDLE) for caller in stack):
            self.on_turn()
        elif time.monotonic() - self._last > _BLOCKED_SECONDS * machine_load():
            own = next(
                (caller for caller in stack if not _is_of_a_library(caller.f_code.co_filename)),
                stack[0],
            )
            self.blocked = f"{own.f_code.co_filename}:{own.f_lineno} {own.f_code.co_name}"
            # Loops and modules let no other exception through.
            raise KeyboardInterrupt


def _is_of_a_library(file: str) -> bool:
    return file.startswith((sysconfig.get_path("stdlib"), "<")) or "site-packages" in file


def _run(world: PlanWorld, cancel: Mapping[str, JSON], seed: int, alarm: bool) -> SweepReport | str:
    """Run one trial. Without a cancellation, its awaits are counted too.

    Returns:
        The report, or the line that blocked the loop.
    """
    watch = _Watch()
    options: dict[str, Any] = {"only": cancel["at"]} if cancel["at"] else {"max_points": 0}
    options |= {"seed": seed, "expect": (ExecutionCancelled,), "watch": watch}
    if cancel["second"] is not None:
        options["second_after"] = (cancel["second"],)
    # Modules log the injected faults.
    logging.disable(logging.CRITICAL)
    try:
        with watch.interrupting() if alarm else contextlib.nullcontext():
            return cancel_everywhere(lambda: world, modes=(cancel["mode"],), **options)
    except KeyboardInterrupt:
        if not watch.blocked:
            raise
        return watch.blocked
    finally:
        logging.disable(logging.NOTSET)


def _plain_case(tools: Mapping[str, list[dict[str, JSON]]]) -> Case:
    """Return a case that calls every tool once, in two answers, and ends with a text."""
    own: dict[str, list[Any]] = {FAULTY: [{"does": "nothing"}], "no_such_tool": [{}]}
    calls = [{"tool": name, "input": inputs[0]} for name, inputs in {**own, **tools}.items()]
    half = (len(calls) + 1) // 2
    return {
        "turns": [[["I look.", *calls[:half]], calls[half:], ["Done."]]],
        "hooks": [],
        "approval": "allow",
    }


def _cases(
    tools: Mapping[str, list[dict[str, JSON]]], modes: Sequence[str], points: int
) -> SearchStrategy[Case]:
    own: dict[str, list[Any]] = {
        FAULTY: [{"does": does} for does in CHOICES["tool"]],
        "no_such_tool": [{}],
    }
    calls = [
        {"tool": name, "input": arguments}
        for name, inputs in {**own, **tools}.items()
        for arguments in inputs
    ]
    errors = st.sampled_from(CHOICES["provider"]).map(lambda name: {"error": name})
    answers = st.lists(st.just("Hm.") | st.sampled_from(calls), min_size=1, max_size=4) | errors
    hook = {"event": st.sampled_from(CHOICES["event"]), "does": st.sampled_from(CHOICES["hook"])}
    places = st.just(0) | st.integers(1, points * 2)
    cancel = {"mode": st.sampled_from(modes), "at": places, "second": st.none() | st.integers(1, 8)}
    return st.fixed_dictionaries(
        {
            "turns": st.lists(st.lists(answers, max_size=4), min_size=1, max_size=3),
            "hooks": st.lists(st.fixed_dictionaries(hook), max_size=2),
            "approval": st.sampled_from(CHOICES["approval"]),
            "cancel": st.fixed_dictionaries(cancel),
        }
    )


def _cancelled_elsewhere(case: Case) -> list[Case]:
    """Return the case with each of the awaits shortly before cancelled instead."""
    places = range(case["cancel"]["at"] - 1, max(0, case["cancel"]["at"] - 1 - _MAX_MOVES), -1)
    return [{**case, "cancel": {**case["cancel"], "at": at}} for at in places]


def _with_less(case: Case) -> Iterator[Case]:
    """Yield the case without its cancellation, and without each of its other parts.

    The parts are faults of hooks, turns, answers and parts of answers.
    """
    if case["cancel"]["at"]:
        yield {**case, "cancel": {**case["cancel"], "at": 0, "second": None}}
    yield from ({**case, "hooks": less} for less in _one_less(case["hooks"]))
    turns = case["turns"]
    yield from ({**case, "turns": less} for less in _one_less(turns))
    for at, turn in enumerate(turns):
        smaller = _one_less(turn)
        for number, answer in enumerate(turn):
            if isinstance(answer, list) and len(answer) > 1:
                smaller += [
                    [*turn[:number], less, *turn[number + 1 :]] for less in _one_less(answer)
                ]
        yield from ({**case, "turns": [*turns[:at], less, *turns[at + 1 :]]} for less in smaller)


def _with_fewer(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the plan without each of its modules.

    The plainest loop and context take the place of others.
    """
    for section in ("hooks", "tools"):
        yield from ({**plan, section: less} for less in _one_less(list(plan.get(section) or ())))
    if plan.get("agents"):
        yield {**plan, "agents": {}}
    session = dict(plan.get("session") or {})
    for role, plainest in _PLAIN.items():
        if session.get(role) != plainest:
            yield {**plan, "session": {**session, role: plainest}}


def _one_less(items: list[Any]) -> list[list[Any]]:
    return [items[:at] + items[at + 1 :] for at in reversed(range(len(items)))]


def _with_absolute_sources(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with absolute paths to modules, since the proof runs elsewhere."""
    anchored = merge_plans(plan, {})
    for holder, key, _, _ in places_of(anchored):
        source = holder[key].get("source") if isinstance(holder[key], dict) else None
        if isinstance(source, str) and Path(source).exists():
            holder[key]["source"] = str(Path(source).absolute())
    return anchored


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Run the body in a fresh folder, which is also the home."""
    here, environment = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(
        prefix="amplifier-proof-", ignore_cleanup_errors=True
    ) as folder:
        Path(folder, _FILE).write_text("A line.\nAnother line.\n", encoding="utf-8")
        for name in [name for name in os.environ if name.startswith(("XDG_", "AMPLIFIER_"))]:
            del os.environ[name]
        if modules := environment.get(SEARCH_PATH_VARIABLE):
            places = [str(here / place) for place in modules.split(os.pathsep) if place]
            os.environ[SEARCH_PATH_VARIABLE] = os.pathsep.join(places)
        os.environ["HOME"] = folder
        mark_descendants()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(environment)
