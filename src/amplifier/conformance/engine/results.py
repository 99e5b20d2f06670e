"""What is known so far about one module: filled by the static checks and by the messages of worker processes.

A clause that no check looked at must not count as kept.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from typing import Any

import attrs

from amplifier.conformance.checks.registry import CHECKS, Check, all_clauses
from amplifier.conformance.engine.job import Job, replay_token
from amplifier.conformance.engine.worker_process import ABANDONED, TOO_SLOW, WorkerExit
from amplifier.conformance.report.outcome import Finding
from amplifier.conformance.target.advice import source_location
from amplifier.conformance.target.locate import BACKENDS
from amplifier.conformance.target.mounted import DECLINED, Fault, StepCoverage

IMPORT = "import"
"""The name of the step before all checks."""
IMPORT_HINT = "Let importing the module succeed and end at once; leave work that may fail or take long to mount."
ENDS_PROCESS_HINT = "Let no call end the process: no os._exit, sys.exit or signal, and no crash of an extension."


def make_finding(fault: Fault, job: Job, *, module_type: str | None, check: str, backend: str | None) -> Finding:
    """Complete a fault by what follows from its clause, its check and the job."""
    clause = all_clauses()[fault.clause]
    location = fault.location or source_location(job.target, module_type or "tool", clause, fault.cancelled_at)
    file = None if location is None else job.target.path_of(location)
    return Finding(
        clause=clause.id,
        level=clause.level,
        what=fault.what,
        check=check,
        backend=backend,
        input=fault.input,
        cancelled_at=fault.cancelled_at,
        location=location,
        file=None if file is None else str(file),
        hint=fault.hint or clause.hint,
        reproduce=_command(job, check, backend, fault.case),
    )


def _command(job: Job, check: str, backend: str | None, case: Any) -> str:
    words = ["amplifier", "module", "validate", job.target.reference]
    words += ["--type", job.module_type] if job.module_type else []
    words += ["--config", json.dumps(job.config)] if job.config else []
    words += ["--plan", json.dumps(job.plan)] if job.plan else []
    words += ["--seed", str(job.seed)] if job.seed else []
    words += ["--thorough"] if job.profile == "thorough" else []
    if check == IMPORT:
        words += ["--only", "A1"]
    elif backend is None:
        words += ["--static"]
    else:
        words += ["--replay", replay_token(f"{check}:{backend}", case)]
    return shlex.join(words)


NO_SUCCESS = (
    "no call succeeded, so that nothing shows it; give examples in the schema, or the settings it needs by --config"
)


@attrs.define
class Coverage:
    """What the checks of one run got to see.

    Attributes:
        static: Names of the static checks that came to a result.
        unread: Why other static checks could not decide, by their names.
        steps: What each completed step got to see, by ``check:backend``.
        failed: Why other steps could not be completed, by ``check:backend``.
    """

    static: set[str] = attrs.field(factory=set)
    unread: dict[str, str] = attrs.field(factory=dict)
    steps: dict[str, StepCoverage] = attrs.field(factory=dict)
    failed: dict[str, str] = attrs.field(factory=dict)

    def backends_without_instance(self) -> list[str]:
        """The backends on which nothing of the module was ever mounted, though checks looked for it."""
        looked, seen = set(), set()
        for step, covered in self.steps.items():
            name, _, backend = step.partition(":")
            if covered.mount_attempted and not CHECKS[name].without_instance:
                looked.add(backend)
            if covered.instance_seen:
                seen.add(backend)
        return sorted(looked - seen)

    def examined_on(self, check: Check, clause: str) -> list[str] | None:
        """The backends on which a check examined a clause, none for a static check; None if it did not examine it."""
        if check.kind == "static":
            return [] if check.name in self.static else None
        found: set[str] = set()
        for backend, covered in self._steps_of(check).items():
            # A check that mounts nothing has read all there is, unless that is part of a module that is not there.
            has_read = not covered.mount_attempted and backend not in self.backends_without_instance()
            was_there = covered.instance_seen or clause in check.without_instance or has_read
            if was_there and self.obstacle(check, clause, backend) is None:
                found.update(covered.backends)
        return sorted(found) or None

    def obstacle(self, check: Check, clause: str, backend: str) -> str | None:
        """What kept a check from examining a clause on a backend all the way; None if nothing did."""
        step = f"{check.name}:{backend}"
        if step in self.failed:
            return self.failed[step]
        covered = self.steps.get(step)
        if covered is None:
            return None
        if covered.cut_short is not None:
            return covered.cut_short
        is_lacking = clause in check.needs_success and covered.instance_seen and not self._has_succeeded(backend)
        return NO_SUCCESS if is_lacking else None

    def _has_succeeded(self, backend: str) -> bool:
        return any(covered.succeeded for step, covered in self.steps.items() if step.endswith(f":{backend}"))

    def _steps_of(self, check: Check) -> dict[str, StepCoverage]:
        """What the steps of a check got to see, by backend."""
        found = {}
        for step, covered in self.steps.items():
            name, _, backend = step.partition(":")
            if name == check.name:
                found[backend] = covered
        return found


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
