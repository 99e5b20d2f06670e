"""What is known so far about one module: filled by the static checks and by the messages of worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import attrs

from amplifier.conformance.harness.coverage import StepCoverage
from amplifier.conformance.harness.mounted_module import Fault
from amplifier.conformance.report.outcome import Finding
from amplifier.conformance.target.locate import BACKENDS

from .coverage import Coverage
from .findings import IMPORT, IMPORT_HINT, make_finding
from .job import Job
from .worker_process import ABANDONED, WorkerExit

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how many are done, and how many there are."""


@attrs.define(kw_only=True)
class Results:
    """The results of one job.

    Attributes:
        module_type: The module's type; None for as long as it is not known.
        backends: What the module declares to run on.
        findings: What was found, in order, one for each backend and case.
        coverage: What the checks got to see.
        failed_steps: Why steps could not be completed, by their names.
        unmounted: Why the module could not be mounted, by backend.
        steps: The names of all steps.
        finished_steps: The names of the steps that are done or given up.
        current_step: The step that the worker has started; empty before the first.
        notes: What limits the result.
    """

    job: Job
    progress: Progress | None = None
    module_type: str | None
    backends: list[str] = attrs.field(factory=lambda: list(BACKENDS))
    findings: list[Finding] = attrs.field(factory=list)
    coverage: Coverage = attrs.field(factory=Coverage)
    failed_steps: dict[str, str] = attrs.field(factory=dict)
    unmounted: dict[str, str] = attrs.field(factory=dict)
    steps: list[str] = attrs.field(factory=list)
    finished_steps: list[str] = attrs.field(factory=list)
    current_step: str = ""
    notes: list[str] = attrs.field(factory=list)

    def add_fault(self, fault: Fault, check: str, backend: str | None = None) -> None:
        """Add what was found in this process."""
        self.findings.append(make_finding(fault, self.job, module_type=self.module_type, check=check, backend=backend))

    def receive(self, message: dict[str, Any]) -> bool:
        """Take one message of the worker; returns whether it was the last."""
        match message:
            case {"start": step}:
                self.current_step = step
                if self.progress is not None:
                    self.progress(step, len(self.finished_steps), max(len(self.steps), 1))
            case {"finding": finding}:
                self.findings.append(Finding(**finding))
            case {"done": step, "coverage": coverage}:
                self.finished_steps.append(step)
                if step not in self.failed_steps:
                    self.coverage.steps[step] = StepCoverage(**coverage)
            case {"unmounted": reason, "step": step}:
                self.failed_steps[step] = self.unmounted[step.partition(":")[2]] = reason
            case {"failed": reason, "step": step}:
                self.failed_steps[step] = reason
                self.notes.append(f"the check {step} could not be completed: {reason}")
            case {"note": note}:
                self.notes += [note] if note not in self.notes else []
            case {"module_type": module_type, "backends": backends, "steps": steps}:
                self.module_type = module_type
                self.backends = backends
                self.steps = self.steps or steps
        return "end" in message

    def give_up_step(self, ended: WorkerExit) -> None:
        """Skip the step in which the worker ended, and blame the module unless the worker has done so already."""
        step = self.current_step
        self.finished_steps.append(step)
        if step == IMPORT:
            what = "importing it never ended, or ended the process"
            self.add_fault(Fault(clause="A1", what=what, hint=IMPORT_HINT), IMPORT)
            return
        self.notes.append(f"the check {step} could not be completed: its process was ended")
        if ended.returncode != ABANDONED:
            killed = ended.returncode in (None, -signal.SIGKILL)
            how = "it stopped responding" if killed else f"exit code {ended.returncode}"
            what = (
                f"it ended or stopped the process that ran it ({how}); a module must do neither. {ended.stderr[-300:]}"
            )
            check, _, backend = step.partition(":")
            hint = (
                None
                if killed
                else "Let no call end the process: no os._exit, sys.exit or signal, and no crash of an extension."
            )
            self.add_fault(Fault(clause="A17", what=what.strip(), hint=hint), check, backend)
