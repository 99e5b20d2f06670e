"""What is known so far about one module: filled by the static checks and by the messages of worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import attrs

from amplifier.conformance.harness.coverage import DECLINED, StepCoverage
from amplifier.conformance.harness.mounted_module import Fault
from amplifier.conformance.report.outcome import Finding
from amplifier.conformance.target.locate import BACKENDS

from .coverage import Coverage
from .findings import ENDS_PROCESS_HINT, IMPORT, IMPORT_HINT, make_finding
from .job import Job
from .worker_process import ABANDONED, TOO_SLOW, WorkerExit

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how many are done, and how many there are."""


@attrs.define(kw_only=True)
class BackendRun:
    """The steps on one backend, which workers do one after another.

    Attributes:
        backend: The backend.
        steps: The names of all steps.
        finished: The names of the steps that are done or given up.
        current_step: The step that the worker has started; empty before the first.
        found: What that step has found so far, should it not come to its end.
        given_up: The names of the steps in which a worker ended.
        notes: What limits the result.
        seconds: What the finished steps have taken.
    """

    backend: str
    steps: list[str] = attrs.field(factory=list)
    finished: list[str] = attrs.field(factory=list)
    current_step: str = ""
    found: list[Finding] = attrs.field(factory=list)
    given_up: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    seconds: float = 0.0


@attrs.define(kw_only=True)
class Results:
    """The results of one job.

    Attributes:
        module_type: The module's type; None for as long as it is not known.
        backends: Where the module can be examined.
        needs_island: It declares asyncio only, and runs on an asyncio island on trio.
        findings: What was found, one for each backend and case.
        coverage: What the checks got to see.
        unmounted: Why the module could not be mounted, by backend.
        runs: The steps on each backend.
    """

    job: Job
    progress: Progress | None = None
    module_type: str | None
    backends: list[str] = attrs.field(factory=lambda: list(BACKENDS))
    needs_island: bool = False
    findings: list[Finding] = attrs.field(factory=list)
    coverage: Coverage = attrs.field(factory=Coverage)
    unmounted: dict[str, str] = attrs.field(factory=dict)
    runs: list[BackendRun] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.runs = [BackendRun(backend=name) for name in self.job.backends]

    @property
    def notes(self) -> list[str]:
        """What limits the result."""
        return list(dict.fromkeys(note for run in self.runs for note in run.notes))

    @property
    def has_steps(self) -> bool:
        """Whether the module could be imported, so that there were steps to do."""
        return any(run.steps for run in self.runs)

    def has_declined(self, backend: str) -> bool:
        """Whether mount declined on a backend."""
        return any(DECLINED in run.notes for run in self.runs if run.backend == backend)

    def add_fault(self, fault: Fault, check: str, backend: str | None = None) -> None:
        """Add what was found in this process."""
        self.findings.append(make_finding(fault, self.job, module_type=self.module_type, check=check, backend=backend))

    def receive(self, run: BackendRun, message: dict[str, Any]) -> bool:
        """Take one message of the worker of a backend; returns whether it was the last."""
        match message:
            case {"start": step}:
                run.current_step, run.found = step, []
                if self.progress is not None:
                    done = sum(len(each.finished) for each in self.runs)
                    self.progress(step, done, max(sum(len(each.steps) for each in self.runs), 1))
            case {"finding": finding}:
                self.findings.append(Finding(**finding))
            case {"found": finding}:
                run.found.append(Finding(**finding))
            case {"done": step, "coverage": coverage, "seconds": seconds}:
                run.finished.append(step)
                run.seconds += seconds
                if step not in self.coverage.failed:
                    self.coverage.steps[step] = StepCoverage(**coverage)
            case {"unmounted": reason, "step": step}:
                self._keep_found(run)
                self.coverage.failed[step] = self.unmounted[run.backend] = reason
            case {"failed": reason, "step": step}:
                self._keep_found(run)
                self.coverage.failed[step] = f"the check {step} could not be completed: {reason}"
            case {"note": note}:
                run.notes += [note] if note not in run.notes else []
            case {"module_type": module_type, "backends": backends, "needs_island": needs_island, "steps": steps}:
                self.needs_island = needs_island
                self.module_type = module_type
                self.backends = backends
                run.steps = run.steps or steps
        return "end" in message

    def _keep_found(self, run: BackendRun) -> None:
        """Let what a step has found count, although the step does not come to its end."""
        self.findings += run.found
        run.found = []

    def give_up_step(self, run: BackendRun, ended: WorkerExit) -> None:
        """Skip the step in which the worker ended, and blame the module unless the worker has done so already."""
        step = run.current_step
        self._keep_found(run)
        run.finished.append(step)
        if ended.returncode != TOO_SLOW:
            run.given_up.append(step)
        if step == IMPORT:
            what = "importing it never ended, or ended the process"
            self.add_fault(Fault(clause="A1", what=what, hint=IMPORT_HINT), IMPORT)
            return
        self.coverage.failed.setdefault(step, f"the check {step} could not be completed: its process was ended")
        if ended.returncode not in (ABANDONED, TOO_SLOW):
            killed = ended.returncode in (None, -signal.SIGKILL)
            how = "it stopped responding" if killed else f"exit code {ended.returncode}"
            what = (
                f"it ended or stopped the process that ran it ({how}); a module must do neither. {ended.stderr[-300:]}"
            )
            check, _, backend = step.partition(":")
            hint = None if killed else ENDS_PROCESS_HINT
            self.add_fault(Fault(clause="A17", what=what.strip(), hint=hint), check, backend)

    def give_up(self, run: BackendRun, reason: str) -> None:
        """Skip all other steps on a backend."""
        for step in run.steps:
            if step not in run.finished:
                self.coverage.failed[step] = reason
        run.finished = list(run.steps)
