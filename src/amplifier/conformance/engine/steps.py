"""Runs the checks on a loaded module, one step after another, in the worker process. A step is one check on one backend. Needs the ``testing`` extra.

Cases are listed and drawn, and failing ones shrunk by way of Hypothesis: for every clause that drawn cases break the smallest one is looked for.
The same seed draws the same cases.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import anyio
import attrs
from hypothesis import HealthCheck, Phase, Verbosity, find, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.checks.registry import Check, checks_for
from amplifier.conformance.engine.cases import context, orchestrator, provider, tool
from amplifier.conformance.engine.job import Job, read_replay_token
from amplifier.conformance.engine.results import ENDS_PROCESS_HINT, make_finding
from amplifier.conformance.inputs.server_process import service_address, with_service, without_service
from amplifier.conformance.inputs.values import use_address
from amplifier.conformance.report.model import Finding
from amplifier.conformance.target.guess_config import find_working_config
from amplifier.conformance.target.literals import choices_in, inputs_in, patterns_in, texts_in
from amplifier.conformance.target.locate import LoadedTarget
from amplifier.conformance.target.mounted import CheckContext, Fault, MountFailed, StepCoverage
from amplifier.conformance.target.process import dropped_objects, started_processes
from amplifier.conformance.target.process_state import ProcessState
from amplifier.conformance.target.use import run_typical_operations, schema_of
from amplifier.conformance.target.virtual_clock import machine_load, run_virtually, skipped, unstalled_time

DRAWN: dict[str, Callable[[dict[str, Any]], SearchStrategy[Any]]] = {
    "context_programs": context.programs,
    "long_conversations": context.long_conversations,
    "hook_events": tool.hook_events,
    "turns": orchestrator.turns,
    "provider_requests": provider.requests,
    "provider_dialogues": provider.dialogues,
    "tool_inputs": tool.tool_inputs,
}
"""From the name of an input to a strategy, a function of the facts about the module."""

LISTED: dict[str, Callable[[dict[str, Any]], Iterable[Any]]] = {
    "context_programs": context.listed_programs,
    "hook_events": tool.listed_events,
    "tool_inputs": tool.listed_inputs,
    "turns": orchestrator.listed_turns,
    "provider_requests": provider.listed_requests,
    "provider_dialogues": provider.listed_dialogues,
}
"""Cases with one feature each that are played before any are drawn, by the name of the input."""


Play = Callable[[Any], list[Fault]]

CALLS = 4_000
"""The calls of the module in all cases of the quick profile; only one that starts processes reaches it."""
SHRINKING = 150
"""Cases tried at most in making one smaller."""
SHRINKING_CALLS = 3_000
"""The calls of the module in these cases."""


def explore(
    cases: SearchStrategy[Any], play: Play, ctx: CheckContext, *, examples: int, known: Set[str] = frozenset()
) -> list[Fault]:
    """Play many drawn cases; return the fault of the smallest failing one for each clause that was broken and not known to be."""
    failing: dict[str, Fault] = {}
    budget = ctx.budget(CALLS)

    def trial(case: Any) -> None:
        if budget.is_spent():
            return
        for fault in play(case):
            if fault.clause not in known:
                failing.setdefault(fault.clause, fault)

    quiet = _settings(examples, (Phase.explicit, Phase.generate))
    seeded(ctx.seed)(quiet(given(cases)(trial)))()
    return [_smallest(cases, play, clause, ctx, examples) or fault for clause, fault in failing.items()]


def _smallest(cases: SearchStrategy[Any], play: Play, clause: str, ctx: CheckContext, examples: int) -> Fault | None:
    best: list[Fault] = []
    left = examples + SHRINKING
    budget = ctx.budget(SHRINKING_CALLS)

    def breaks(case: Any) -> bool:
        nonlocal left, best
        left -= 1
        if left < 0 or budget.is_spent():
            return False
        found = [fault for fault in play(case) if fault.clause == clause]
        best = found or best
        return bool(found)

    with suppress(HypothesisException):  # not reproduced: the module does not do the same every time
        find(cases, breaks, settings=_settings(examples + SHRINKING), random=random.Random(ctx.seed))
    return best[0] if best else None


def _settings(examples: int, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> settings:
    return settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


Emit = Callable[[dict[str, Any]], None]

PROFILES = {"quick": (20, 24), "thorough": (150, 400)}
"""How many cases a check draws, and how many suspension points of a call are tried."""
_MOST_TRIGGERS = 60
_DYNAMIC_KINDS = ("structure", "behaviour", "cancellation", "hygiene")


@attrs.frozen(kw_only=True)
class Step:
    """One check on one backend."""

    check: Check
    backend: str

    @property
    def name(self) -> str:
        """``check:backend``."""
        return f"{self.check.name}:{self.backend}"


@contextmanager
def _deterministic_order(backend: str, seed: int) -> Iterator[None]:
    """Let everything happen in the same order each time: trio would shuffle its tasks, and programs draw at random."""
    random.seed(seed)
    if backend != "trio":
        yield
        return
    from amplifier.testing.cancel_sweep.trio_trial import deterministic_scheduling  # noqa: PLC0415 — it imports trio

    with deterministic_scheduling(seed):
        yield


class Runner:
    """The steps of one job.

    Args:
        loaded: The module.
        job: What to do.
        emit: Sends a message to the controller.
        abandon: Sends a finding and ends the process, when a call of the module cannot be stopped.

    Attributes:
        step: The name of the one that runs.
    """

    def __init__(self, loaded: LoadedTarget, job: Job, emit: Emit, abandon: Callable[[Finding], NoReturn]) -> None:
        self._loaded = loaded
        self._job = job
        self._emit = emit
        self._abandon = abandon
        self._examples, self._points = PROFILES[job.profile]
        self._facts: dict[str, dict[str, Any]] = {}
        self._coverage = StepCoverage()
        self._playing: tuple[Step, CheckContext] | None = None
        self._sent: set[str] = set()
        self._state = ProcessState()
        self.step: str = ""

    def steps(self) -> list[Step]:
        """What there is to do, in order."""
        backends = [name for name in self._job.backends if name in self._loaded.backends]
        if self._job.replay is not None:
            backends = [name for name in backends if name == self._job.replay.split(":")[1]]
        found = [
            Step(check=check, backend=backend)
            for check in checks_for(self._loaded.module_type, _DYNAMIC_KINDS)
            for backend in backends
            if self._job.selects(check)
        ]
        return [step for step in found if step.name not in self._job.skip]

    def run(self) -> None:
        """Do every step and send what is found."""
        for number, step in enumerate(self.steps()):
            self.step = step.name
            self._emit({"start": step.name})
            started = unstalled_time() - skipped()
            if number == 0:
                self._guess_config(step)
            self._state.restore()  # what one step changed, another must not take for given
            self._coverage = StepCoverage(backends=[step.backend])
            self._playing, self._sent = None, set()
            try:
                for fault in self._explore(step):
                    self._emit({"finding": attrs.asdict(self._finding(step, fault))})
            except MountFailed as failed:
                self._send_faults()
                self._emit({"unmounted": str(failed), "step": step.name})
            except BaseException as error:  # noqa: BLE001 — a check that fails itself shows nothing about the module
                self._send_faults()
                if (exiting := exit_in(error)) is not None:
                    self._emit({"finding": attrs.asdict(self._finding(step, self._exit_fault(exiting)))})
                self._emit({"failed": f"{type(error).__name__}: {error}", "step": step.name})
            seconds = (unstalled_time() - skipped() - started) / machine_load()
            self._emit({"done": step.name, "coverage": attrs.asdict(self._coverage), "seconds": seconds})

    def _send_faults(self) -> None:
        """Send what the step has found so far, each clause once; it counts if the step does not come to its end."""
        if self._playing is None:
            return
        step, stage = self._playing
        for fault in _with_input(stage):
            if fault.clause not in self._sent:
                self._sent.add(fault.clause)
                self._emit({"found": attrs.asdict(self._finding(step, fault))})

    def _exit_fault(self, error: BaseException) -> Fault:
        """The fault of a module that raised an exit in a task of its own, which asyncio lets out of the loop."""
        what = f"it raised {type(error).__name__}, which ends the process that runs it; a module must not do that"
        location = self._loaded.target.location_of(error)
        return Fault(clause="A17", what=what, location=location, hint=ENDS_PROCESS_HINT)

    def _finding(self, step: Step, fault: Fault) -> Finding:
        found_by = {"check": step.check.name, "backend": step.backend}
        return make_finding(fault, self._job, module_type=self._loaded.module_type, **found_by)

    def _guess_config(self, step: Step) -> None:
        """Find the settings with which the module can be examined, what it looks for, and whether its calls start processes."""
        if self._loaded.module_type == "hook":
            patterns = patterns_in(self._loaded.target)
            found_texts = (text for pattern in patterns for text in tool.texts_matching(pattern))
            triggers = tuple(dict.fromkeys(found_texts))[:_MOST_TRIGGERS]
            self._loaded = attrs.evolve(self._loaded, triggers=triggers)
        try:
            found = run_virtually(find_working_config, self._stage(step, None), backend=step.backend)
        except BaseException:  # noqa: BLE001 — third-party code; the checks report what is wrong with it
            return
        guessed = {key: value for key, value in found.config.items() if key not in self._loaded.config}
        if guessed:
            self._emit({"note": f"mounted with settings guessed from its source: {guessed!r}"})
        self._loaded = found
        if self._job.has_hung:
            return  # perhaps in this
        before = started_processes()
        try:
            run_virtually(_use, self._stage(step, None), backend=step.backend)
        except BaseException:  # noqa: BLE001 — as above
            return
        self._loaded = attrs.evolve(found, starts_processes=started_processes() > before)

    def _explore(self, step: Step) -> list[Fault]:
        """Run a check: once, once more with the replayed case, or on cases listed and drawn for it."""
        replayed = None if self._job.replay is None else with_service(read_replay_token(self._job.replay)[1])
        if step.check.inputs is None or (replayed is not None and "listed" not in replayed):
            return self._play(step, replayed)
        self._coverage.mount_attempted = True  # also if there is nothing to draw cases for
        if step.backend not in self._facts:
            self._facts[step.backend] = run_virtually(_gather_facts, self._stage(step, None), backend=step.backend)
        facts = self._facts[step.backend]
        listed = list(LISTED[step.check.inputs](facts)) if step.check.inputs in LISTED else []
        if replayed is not None:
            return [fault for case in listed[replayed["listed"] :][:1] for fault in self._play(step, case, replayed)]
        known: dict[str, Fault] = {}
        for number, case in enumerate(listed):
            for fault in self._play(step, case, {"listed": number}):
                known.setdefault(fault.clause, fault)
        cases, stage = DRAWN[step.check.inputs](facts), self._stage(step, None)
        drawn = explore(cases, lambda case: self._play(step, case), stage, examples=self._examples, known=set(known))
        return [*known.values(), *drawn]

    def _play(self, step: Step, case: Any, token: Any = None) -> list[Fault]:
        """Run a check on a case; the token is what to write into a command that plays it again."""
        stage = attrs.evolve(self._stage(step, case), coverage=self._coverage, token=case if token is None else token)
        self._playing = step, stage
        is_cleaned = step.check.name == "every_module.cleans_up"
        if is_cleaned:
            gc.collect()  # what earlier steps have left
        with _deterministic_order(step.backend, self._job.seed), dropped_objects() as (unawaited, unclosed):
            run = anyio.run if step.check.real_time else run_virtually
            run(step.check.run, stage, backend=step.backend)
            if is_cleaned:
                gc.collect()
        # What a cancelled call leaves is looked at in other ways.
        if step.check.kind == "behaviour" or is_cleaned:
            self._report_unawaited(stage, unawaited)
        if is_cleaned and unclosed and self._job.covers(step.check, "A23"):
            text, lines = unclosed[0]
            own = [self._loaded.target.location_at(*line) for line in lines if self._loaded.target.owns(line[0])]
            stage.fault("A23", f"{text}: it was left to the garbage collector", location=own[0] if own else None)
        for note in stage.notes:
            self._emit({"note": note})
        self._send_faults()
        return _with_input(stage)

    def _report_unawaited(self, stage: CheckContext, unawaited: list[tuple[str, list[tuple[str, int]]]]) -> None:
        """Report the first coroutine that a line of the module has created and not awaited."""
        target = self._loaded.target
        for text, lines in unawaited if not self._job.only or "A14" in self._job.only else ():
            own = [target.location_at(file, line) for file, line in lines if target.owns(file)]
            if own:
                stage.fault("A14", f"the {text}", location=own[-1], hint="Await it, or start it in a task group.")
                return

    def _stage(self, step: Step, case: Any) -> CheckContext:
        return CheckContext(
            loaded=self._loaded,
            backend=step.backend,
            seed=self._job.seed,
            points=self._points,
            case=case,
            abort=lambda fault: self._abandon(self._finding(step, fault)),
            before_call=self._send_faults,
        )


def exit_in(error: BaseException) -> BaseException | None:
    """The exit that an error is, or that a group of errors holds; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := exit_in(each)) is not None), None)
    return error if isinstance(error, (SystemExit, KeyboardInterrupt)) else None


def _with_input(stage: CheckContext) -> list[Fault]:
    """The faults of a check, each with its input: the case, where there is no other."""
    return [
        attrs.evolve(
            fault,
            input=without_service(stage.case if fault.input is None else fault.input),
            case=without_service(stage.token),
        )
        for fault in stage.faults
    ]


async def _use(stage: CheckContext) -> None:
    async with stage.mount() as mounted:
        if stage.loaded.module_type == "tool":
            schemas = json.dumps([schema_of(tool) for tool in mounted.instances.values()], default=repr).lower()
            if any(f'"{word}' in schemas for word in ("url", "uri")):
                use_address(f"{service_address()}/page")
        await run_typical_operations(mounted)


async def _gather_facts(stage: CheckContext) -> dict[str, Any]:
    """What the strategies need to know of the module, as JSON values: its schemas, its handlers, words of its source."""
    target = stage.loaded.target
    facts: dict[str, Any] = {
        "words": inputs_in(target),
        "texts": texts_in(target),
        "choices": choices_in(target),
        "triggers": list(stage.loaded.triggers),
        "tools": {},
        "handlers": [],
    }
    try:
        async with stage.mount() as scene:
            if stage.loaded.module_type == "tool":
                facts["tools"] = {name: schema_of(tool) for name, tool in scene.instances.items()}
            facts["handlers"] = [[each.name, each.event] for each in scene.registrations]
    except MountFailed:
        return facts
    return facts
