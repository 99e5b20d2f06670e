"""Runs the checks on a loaded subject, one step after another, in the worker process.

A step is one check on one backend. Above stands `_worker`, which reads the job and writes what is found; below stand the
scene and, for checks that draw cases, `_properties`.
"""

from __future__ import annotations

import base64
import json
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import anyio
import attrs

from amplifier.conformance.harness.check_registry import Check, checks_for
from amplifier.conformance.harness.coverage import StepCoverage
from amplifier.conformance.harness.guess_config import find_working_config
from amplifier.conformance.harness.mounted_module import CheckContext, Fault, MountFailed
from amplifier.conformance.target.load import LoadedSubject
from amplifier.errors import MissingExtraError

Say = Callable[[dict[str, Any]], None]

PROFILES = {"quick": (20, 24), "thorough": (150, 400)}
"""How many cases a check draws, and how many suspension points of a call are tried."""


@attrs.frozen(kw_only=True)
class Step:
    """One check on one backend."""

    check: Check
    backend: str

    @property
    def name(self) -> str:
        """``check:backend``."""
        return f"{self.check.name}:{self.backend}"


@attrs.frozen(kw_only=True)
class Job:
    """What the worker is to do.

    Attributes:
        plan: What the plan of its session holds besides.
        profile: ``quick`` or ``thorough``.
        backends: Where to run.
        skip: Names of steps that are done, or that ended an earlier worker.
        only: Clause ids or names of checks; all if empty.
        replay: One step and its case, as `token` made it.
    """

    target: str
    module_type: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    profile: str = "quick"
    seed: int = 0
    backends: list[str] = attrs.field(factory=lambda: ["asyncio", "trio"])
    skip: list[str] = attrs.field(factory=list)
    only: list[str] = attrs.field(factory=list)
    replay: str | None = None


def token(step: str, case: Any) -> str:
    """A step and its case in one word for the command line."""
    packed = base64.urlsafe_b64encode(json.dumps(case, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{step}:{packed}"


def read_token(text: str) -> tuple[str, Any]:
    """The step and the case of a token.

    Raises:
        ValueError: It is none.
    """
    name, backend, packed = [*text.split(":"), "", ""][:3]
    try:
        case = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    except ValueError as error:
        raise ValueError(f"--replay {text!r} is not what a report printed; copy it whole") from error
    return f"{name}:{backend}", case


@contextmanager
def _same_order(backend: str, seed: int) -> Iterator[None]:
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

    Attributes:
        step: The one that is being done.
        is_thorough: Whether they take their time.
    """

    def __init__(self, loaded: LoadedSubject, job: Job, say: Say, last_words: Callable[[str, Fault], NoReturn]) -> None:
        self._loaded = loaded
        self._job = job
        self._say = say
        self._last_words = last_words
        self._examples, self._points = PROFILES[job.profile]
        self._facts: dict[str, Any] = {}
        self._is_settled = False
        self._sight = StepCoverage()
        self.step = ""
        self.is_thorough = job.profile == "thorough"

    def steps(self) -> list[Step]:
        """What there is to do, in order."""
        kinds = ("structure", "behaviour", "cancellation", "hygiene")
        backends = [name for name in self._job.backends if name in self._loaded.backends]
        found = [
            Step(check=check, backend=backend)
            for check in checks_for(self._loaded.module_type, kinds)
            for backend in backends
            if self._is_wanted(check)
        ]
        return [step for step in found if step.name not in set(self._job.skip)]

    def _is_wanted(self, check: Check) -> bool:
        if self._job.replay is not None:
            return check.name == read_token(self._job.replay)[0].partition(":")[0]
        only = set(self._job.only)
        return not only or check.name in only or bool(only.intersection(check.clauses))

    def run(self) -> None:
        """Do everything and say what is found."""
        replayed, case = read_token(self._job.replay) if self._job.replay is not None else (None, None)
        for step in self.steps():
            if replayed is not None and step.name != replayed:
                continue
            started = time.monotonic()
            self.step = step.name
            self._say({"start": step.name})
            self._settle(step)
            self._sight = StepCoverage(backends={step.backend})
            for fault in self._faults_of(step, replayed is not None, case):
                self._say({"fault": attrs.asdict(fault), "step": step.name})
            seen = {**attrs.asdict(self._sight), "backends": sorted(self._sight.backends)}
            self._say({"done": step.name, "seconds": round(time.monotonic() - started, 3), "sight": seen})

    def _settle(self, step: Step) -> None:
        """Before the first step: find the settings with which the subject can be examined."""
        if self._is_settled:
            return
        self._is_settled = True
        try:
            found = anyio.run(find_working_config, self._stage(step, None), backend=step.backend)
        except BaseException:  # noqa: BLE001 — foreign code; the checks will say what is wrong with it
            return
        guessed = {key: value for key, value in found.config.items() if key not in self._loaded.config}
        if guessed:
            self._say({"note": f"mounted with settings guessed from its source: {guessed!r}", "step": step.name})
        self._loaded = found

    def _faults_of(self, step: Step, is_replay: bool, case: Any) -> Iterator[Fault]:
        try:
            if step.check.inputs is None or is_replay:
                yield from self._play(step, case)
            else:
                yield from self._explored(step)
        except MountFailed as failed:
            self._say({"unmounted": str(failed), "step": step.name})
        except MissingExtraError:
            raise
        except BaseException as error:  # noqa: BLE001 — a check that breaks down says nothing about the subject
            text = "".join(traceback.format_exception(error))[-4000:]
            self._say({"broken": f"{type(error).__name__}: {error}", "step": step.name, "traceback": text})

    def _explored(self, step: Step) -> list[Fault]:
        # Here, because the rest works without Hypothesis.
        try:
            from amplifier.conformance.engine.case_strategies.by_name import INPUTS  # noqa: PLC0415 — needs the testing extra

            from .shrinking import explore  # noqa: PLC0415 — needs the testing extra
        except ImportError as error:
            raise MissingExtraError("checking behaviour", extra="testing", missing="hypothesis") from error
        assert step.check.inputs is not None
        self._sight.mount_attempted = True  # also if there is nothing to draw cases for
        cases = INPUTS[step.check.inputs](self._facts_for(step))
        return explore(cases, lambda case: self._play(step, case), seed=self._job.seed, examples=self._examples)

    def _facts_for(self, step: Step) -> dict[str, Any]:
        """What the strategies need to know of the subject, asked once for each backend."""
        from .module_facts import gather  # noqa: PLC0415 — only behaviour needs it

        if step.backend not in self._facts:
            stage = self._stage(step, None)
            self._facts[step.backend] = anyio.run(gather, stage, backend=step.backend)
        facts: dict[str, Any] = self._facts[step.backend]
        return facts

    def _play(self, step: Step, case: Any) -> list[Fault]:
        stage = attrs.evolve(self._stage(step, case), coverage=self._sight)
        with _same_order(step.backend, self._job.seed):
            anyio.run(step.check.run, stage, backend=step.backend)
        for note in stage.notes:
            self._say({"note": note, "step": step.name})
        return [attrs.evolve(fault, input=case if fault.input is None else fault.input) for fault in stage.faults]

    def _stage(self, step: Step, case: Any) -> CheckContext:
        return CheckContext(
            loaded=self._loaded,
            backend=step.backend,
            seed=self._job.seed,
            points=self._points,
            case=case,
            abort=lambda fault: self._last_words(step.name, fault),
        )
