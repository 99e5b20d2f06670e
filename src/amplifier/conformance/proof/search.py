"""Looks for a case in which a plan breaks a law: sweeps a plain conversation, then draws others, and makes what it finds small.

The modules run for real, in this process, with a scripted model; the working directory and the home are a fresh folder. Time is virtual.
"""

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
"""The part of the budget that the sweep of the plain conversation may take."""
_REDUCTION_SHARE = 0.3
"""The part of the budget that making one finding small may take, if need be beyond the whole."""
_DRAWN = 50
"""Cases drawn between two looks at the budget."""
_PLACES = 12
_FILE = "notes.txt"
_PLAIN = {"orchestrator": "loop-basic", "context": "context-simple"}


@attrs.frozen(kw_only=True)
class Broken:
    """A law that a plan breaks.

    Attributes:
        law: One of `LAWS`.
        what: How it is broken.
        case: The least of a conversation, faults and a cancellation that breaks it.
        modules: The fewest modules of the plan with which it breaks.
        where: The await at which the cancellation came, if one did.
    """

    law: str
    what: str
    case: Case
    modules: tuple[str, ...]
    where: str

    def lines(self) -> list[str]:
        """The finding as text."""
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
    """What the search found.

    Attributes:
        broken: Each broken law once.
        trials: How many sessions were run.
        points: By mode, how many awaits of the plain conversation were cancelled, and how many there are.
    """

    seed: int
    broken: list[Broken] = attrs.field(factory=list)
    trials: int = 0
    seconds: float = 0.0
    points: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    def lines(self) -> list[str]:
        """The report as text."""
        found = (
            f"{len(self.broken)} of {len(LAWS)} laws broken"
            if self.broken
            else f"all {len(LAWS)} laws hold"
        )
        lines = [f"{found} in {self.trials} sessions, {self.seconds:.0f} s (seed {self.seed})"]
        lines += [
            f"  {mode}: cancelled at {done} of {count} awaits"
            for mode, (done, count) in self.points.items()
        ]
        return lines + [line for each in self.broken for line in ("", *each.lines())]


def prove_plan(plan: Mapping[str, Any], **options: Any) -> Proof:
    """Run a plan's modules together and raise what `examine_plan` finds; for a test, in one line. It takes the same options.

    Raises:
        AssertionError: A law is broken; the text is the report.
        AmplifierError: The plan cannot be run at all.
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

    Args:
        plan: The mount plan; functions and objects may be in it. Its providers are not used.
        seconds: How long to look; what is found late is still made small.
        sessions: Look in so many sessions instead, however long they take: then equal seeds find equal things.
        seed: Equal seeds draw equal cases.
        backends: What to run it on.
        case: Play this one only.
        alarm: Interrupt a module that blocks the event loop, and name its line. This takes the process's alarm signal while it runs, so it
            is for a process that does nothing else, such as the command ``amplifier plan prove``. Without it such a module blocks the search.

    Raises:
        AmplifierError: The plan cannot be run at all.
    """
    reject_unknown(backends)
    require_packages(backends)
    anchored = _with_absolute_sources(plan)
    with _elsewhere():
        search = _Search(
            anchored,
            (seconds, sessions),
            seed,
            [mode for backend in backends for mode in _MODES[backend]],
            alarm,
        )
        search.run(case)
    return search.proof


@attrs.frozen
class _Found:
    laws: dict[str, str]
    where: str
    points: int


class _Search:
    def __init__(
        self,
        plan: Mapping[str, Any],
        most: tuple[float, int | None],
        seed: int,
        modes: Sequence[str],
        alarm: bool,
    ) -> None:
        self._plan = plan
        self._alarm = alarm
        self._most = most
        self._modes = modes
        self._random = random.Random(seed)
        self._resources = Resources()
        self._began = time.monotonic()
        self.proof: Proof = Proof(seed=seed)

    def run(self, case: Case | None) -> None:
        """Look for broken laws until the budget is used, or play one case."""
        if case is not None:
            self._take(self._trial(case), case)
        else:
            tools = self._tools()
            self._began = time.monotonic()  # what was imported until now does not count
            self._sweep(_plain_case(tools))
            self._draw(
                _cases(tools, self._modes, max(count for _, count in self.proof.points.values()))
            )
        self.proof.seconds = time.monotonic() - self._began

    def _used(self) -> float:
        """How much of the budget is used, 1 for all of it."""
        seconds, sessions = self._most
        return (
            (time.monotonic() - self._began) / seconds
            if sessions is None
            else self.proof.trials / sessions
        )

    def _tools(self) -> dict[str, list[dict[str, Any]]]:
        """The tools that the plan offers to its model, with some inputs of each."""
        world = PlanWorld(self._plan, {"turns": []})
        report = _run(
            world, {"mode": self._modes[0], "at": 0, "second": None}, self.proof.seed, self._alarm
        )
        if isinstance(report, str):
            raise AmplifierError(f"the plan cannot be run: the event loop was blocked at {report}")
        if not world.provider.requests:
            found = "; ".join(violation.detail for violation in report.violations)
            raise AmplifierError(
                f"the plan cannot be run: {found or 'its loop does not ask its provider'}"
            )
        offered = world.provider.requests[0].tools or ()
        return {
            tool.name: sample_inputs(tool.parameters, _FILE)
            for tool in offered
            if tool.name != FAULTY
        }

    def _sweep(self, plain: Case) -> None:
        """Cancel the plain conversation at every await, in an order drawn by the seed, as far as the budget goes."""
        left: dict[str, list[int]] = {}
        for mode in self._modes:
            case = {**plain, "cancel": {"mode": mode, "at": 0, "second": None}}
            found = self._trial(case)
            self._take(found, case)
            left[mode] = self._random.sample(range(1, found.points + 1), found.points)
            self.proof.points[mode] = (0, found.points)
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

        quiet = quiet_settings(_DRAWN, Phase.generate)
        while self._used() < 1:
            with contextlib.suppress(
                HypothesisException
            ):  # it says that no case satisfies the condition
                find(cases, breaks, settings=quiet, random=random.Random(self._random.random()))

    def _trial(self, case: Case, plan: Mapping[str, Any] | None = None) -> _Found:
        """Play a case."""
        self.proof.trials += 1
        processes = started_processes()
        world = PlanWorld(self._plan if plan is None else plan, case)
        report = _run(world, case["cancel"], self.proof.seed, self._alarm)
        if isinstance(report, str):
            return _Found(
                {"ends": f"the event loop was blocked for {_BLOCKED_SECONDS:g} s at {report}"},
                report,
                0,
            )
        laws = dict(map(_law_of, reversed(report.violations)))
        # The environment marks what is no child of this process.
        if (
            started_processes() > processes
            and "ends" not in laws
            and remaining(self._resources.left_processes)
        ):
            laws["nothing left"] = "a process that was started in the session runs on after it"
        where = next((violation.where for violation in report.violations), "")
        return _Found(laws, where, sum(report.points.values()))

    # ── making it small ──

    def _take(self, found: _Found, case: Case) -> None:
        """Note the laws that a case breaks and that were not known to be broken, each with the least that breaks it."""
        known = {each.law for each in self.proof.broken}
        for law in [law for law in found.laws if law not in known]:
            plan, least, last = self._reduced(law, case, found)
            modules = tuple(module_hashes({**plan, "providers": []}))
            self.proof.broken.append(
                Broken(law=law, what=last.laws[law], case=least, modules=modules, where=last.where)
            )

    def _reduced(
        self, law: str, case: Case, last: _Found
    ) -> tuple[Mapping[str, Any], Case, _Found]:
        """Leave out one step or one module after the other while the law still breaks."""
        until = self._used() + _REDUCTION_SHARE
        plan, again = self._plan, True
        while again:
            again = False
            less = [(plan, smaller) for smaller in _with_less(case)] + [
                (fewer, case) for fewer in _with_fewer(plan)
            ]
            # With a step less the same await has another number; that is tried when nothing else helps.
            elsewhere = [
                (fewer, moved) for fewer, smaller in less for moved in _cancelled_elsewhere(smaller)
            ]
            for fewer, tried in [*less, *elsewhere]:
                if self._used() > until:
                    break
                found = self._trial(tried, fewer)
                if law in found.laws:
                    plan, case, last, again = fewer, tried, found, True
                    break
        return plan, case, last


def _law_of(violation: Violation) -> tuple[str, str]:
    """The law that a finding of the sweep is about, and how it is broken; the world's own findings begin with it."""
    law, _, what = violation.detail.partition(": ")
    return (KINDS[violation.kind], violation.detail) if violation.kind in KINDS else (law, what)


_BLOCKED_SECONDS = 5.0
"""Real seconds after which code that neither returns to the loop nor lets it wait is interrupted."""
_IDLE = ("selectors.py", "virtual_time.py", "_io_epoll.py", "_io_kqueue.py", "_io_windows.py")
"""Files in which a loop waits."""


class _Watch(TimeWatch):
    """Lets time pass as on the wall while a process runs that was started in the trial, of which trio's clock does not know; ends a trial that blocks its loop.

    Attributes:
        blocked: The line that blocked the loop; empty if none did.
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
        """Interrupt the body when it blocks the loop; only the main thread can be interrupted."""
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
        stack = [] if frame is None else [each for each, _ in traceback.walk_stack(frame)]
        if any(each.f_code.co_filename.endswith(_IDLE) for each in stack):
            self.on_turn()
        elif time.monotonic() - self._last > _BLOCKED_SECONDS * machine_load():
            own = next(
                (each for each in stack if not _is_of_a_library(each.f_code.co_filename)), stack[0]
            )
            self.blocked = f"{own.f_code.co_filename}:{own.f_lineno} {own.f_code.co_name}"
            raise KeyboardInterrupt  # the one thing that loops and modules let through


def _is_of_a_library(file: str) -> bool:
    return file.startswith((sysconfig.get_path("stdlib"), "<")) or "site-packages" in file


def _run(world: PlanWorld, cancel: Mapping[str, Any], seed: int, alarm: bool) -> SweepReport | str:
    """Run one trial; without a cancellation its awaits are counted as well. Returns the line that blocked the loop instead of a report, if one did."""
    watch = _Watch()
    which: dict[str, Any] = {"only": cancel["at"]} if cancel["at"] else {"max_points": 0}
    which |= {"seed": seed, "expect": (ExecutionCancelled,), "watch": watch}
    if cancel["second"] is not None:
        which["second_after"] = (cancel["second"],)
    logging.disable(logging.CRITICAL)  # what modules log about faults that were injected is no news
    try:
        with watch.interrupting() if alarm else contextlib.nullcontext():
            return cancel_everywhere(lambda: world, modes=(cancel["mode"],), **which)
    except KeyboardInterrupt:
        if not watch.blocked:
            raise
        return watch.blocked
    finally:
        logging.disable(logging.NOTSET)


def _plain_case(tools: Mapping[str, list[dict[str, Any]]]) -> Case:
    """Every tool once, in two answers, and a text."""
    own: dict[str, list[Any]] = {FAULTY: [{"does": "nothing"}], "no_such_tool": [{}]}
    calls = [{"tool": name, "input": inputs[0]} for name, inputs in {**own, **tools}.items()]
    half = (len(calls) + 1) // 2
    return {
        "turns": [[["I look.", *calls[:half]], calls[half:], ["Done."]]],
        "hooks": [],
        "approval": "allow",
    }


def _cases(
    tools: Mapping[str, list[dict[str, Any]]], modes: Sequence[str], points: int
) -> SearchStrategy[Case]:
    own: dict[str, list[Any]] = {
        FAULTY: [{"does": does} for does in CHOICES["tool"]],
        "no_such_tool": [{}],
    }
    calls = [
        {"tool": name, "input": given}
        for name, inputs in {**own, **tools}.items()
        for given in inputs
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
    """The case with another await cancelled, one shortly before."""
    places = range(case["cancel"]["at"] - 1, max(0, case["cancel"]["at"] - 1 - _PLACES), -1)
    return [{**case, "cancel": {**case["cancel"], "at": at}} for at in places]


def _with_less(case: Case) -> Iterator[Case]:
    """The case without its cancellation, and without each of its faults of hooks, turns, answers and parts of answers."""
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
    """The plan without each of its modules; without its loop and its context means with the plainest."""
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
    """The plan with its relative paths to modules as seen from here; the proof runs elsewhere."""
    anchored = merge_plans(plan, {})
    for holder, key, _, _ in places_of(anchored):
        source = holder[key].get("source") if isinstance(holder[key], dict) else None
        if isinstance(source, str) and Path(source).exists():
            holder[key]["source"] = str(Path(source).absolute())
    return anchored


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Work in a fresh folder, which is the home as well, and come back."""
    here, environment = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(
        prefix="amplifier-proof-", ignore_cleanup_errors=True
    ) as folder:
        Path(folder, _FILE).write_text("A line.\nAnother line.\n", encoding="utf-8")
        for name in [name for name in os.environ if name.startswith(("XDG_", "AMPLIFIER_"))]:
            del os.environ[name]
        if modules := environment.get(SEARCH_PATH_VARIABLE):
            places = [str(here / each) for each in modules.split(os.pathsep) if each]
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
