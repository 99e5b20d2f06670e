"""What is known about one module, filled by the static checks and by the messages of worker processes, and the report that follows from it.

A clause that no check looked at must not count as kept.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from typing import Any

import attrs

from amplifier.conformance.checks.registry import CHECKS, Check, all_clauses, checks_for
from amplifier.conformance.engine.job import Job, replay_token, shortened
from amplifier.conformance.report.model import ClauseOutcome, Finding, Report, Verdict
from amplifier.conformance.target.advice import source_location
from amplifier.conformance.target.locate import BACKENDS
from amplifier.conformance.target.mounted import DECLINED, Fault, StepCoverage
from amplifier.contracts import Clause, clauses_for
from amplifier.errors import ModuleLoadError

ABANDONED = 3
"""The exit code of a worker after a call of the module that could not be stopped."""
TOO_SLOW = 4
"""The exit code of a worker that took longer than it may."""
IMPORT = "import"
"""The name of the step before all checks."""
IMPORT_HINT = (
    "Install what it imports, and declare that in its dependencies. Let importing the module succeed and end at once, also while an event loop runs, as it does when the kernel imports it; "
    "leave work that may fail or take long to mount, and await it there instead of calling anyio.run or asyncio.run."
)
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


@attrs.frozen(kw_only=True)
class WorkerExit:
    """How a worker ended.

    Attributes:
        finished: It sent its last message.
        was_silent: It sent nothing for so long that it was killed.
        returncode: Its exit code, if it ended by itself or by a signal.
        stderr: The end of what it wrote to standard error.
    """

    finished: bool
    was_silent: bool
    returncode: int | None
    stderr: str


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
        """Skip the step in which the worker ended, and report a fault unless the worker has done so."""
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


def make_report(results: Results, profile: str) -> Report:
    """The report on everything that was found.

    Raises:
        ModuleLoadError: The module's type is still not known.
    """
    target, job = results.job.target, results.job
    if results.module_type is None:
        raise ModuleLoadError(
            f"the type of {target.module_id!r} is not known; name it with --type, mark its functions with @tool or @on, or declare "
            "__amplifier_module_type__ in the module",
            module_id=target.module_id,
        )
    _report_asyncio_only(results)
    findings = _merged(_in_order(results))
    clauses = clauses_for(results.module_type)  # type: ignore[arg-type]  # a type that find_target accepts
    outcomes = [_outcome(clause, results, findings) for clause in clauses]
    missing = _missing(results, findings, profile)
    verdict = _verdict(outcomes, missing, results)
    return Report(
        module=target.module_id,
        type=results.module_type,
        source=target.reference,
        verdict=verdict,
        profile=profile,
        seed=job.seed,
        backends=[] if profile == "static" else _run_on(results),
        clauses=outcomes,
        limitations=[
            *(f"declares that it does not run on {name}" for name in BACKENDS if name not in results.backends),
            *(["declares asyncio only: on trio it runs on an asyncio island"] if results.needs_island else []),
        ],
        notes=_notes(results, outcomes, missing, verdict, profile),
        selected=job.only if job.replay is None else [job.replay.rpartition(":")[0]],
    )


def _run_on(results: Results) -> list[str]:
    """The backends that the module was to be run on: those it declares, and that of the replayed step alone."""
    replay = results.job.replay
    wanted = results.job.backends if replay is None else [replay.split(":")[1]]
    return [name for name in results.job.backends if name in results.backends and name in wanted]


def _report_asyncio_only(results: Results) -> None:
    """Report a module that mounts on asyncio alone without declaring it; the steps on trio then count no longer."""
    unmounted = results.unmounted
    if "trio" not in unmounted or "asyncio" in unmounted or "asyncio" not in results.job.backends:
        return
    what = f"it can be mounted on asyncio but not on trio: {unmounted.pop('trio')}"
    results.add_fault(Fault(clause="A18", what=what), "every_module.mounts", "trio")


def _in_order(results: Results) -> list[Finding]:
    """The findings in the order of the checks, and not in that in which the backends came to them."""
    order = [check.name for check in checks_for(results.module_type or "tool")]

    def place(finding: Finding) -> tuple[int, int]:
        at = order.index(finding.check) if finding.check in order else -1
        return at, BACKENDS.index(finding.backend) if finding.backend in BACKENDS else -1

    return sorted(results.findings, key=place)


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for each clause and check, with all backends on which it was found."""
    # On a backend that the module cannot run on, everything else that is found follows from that.
    unusable = _unusable(findings)
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.backend in unusable and finding.clause != "A18":
            continue
        first = merged.setdefault((finding.clause, finding.check), finding)
        if finding.backend and first.backend and finding.backend not in first.backend:
            merged[finding.clause, finding.check] = attrs.evolve(first, backend=f"{first.backend}, {finding.backend}")
    return [_with_short_command(finding) for finding in merged.values()]


def _with_short_command(finding: Finding) -> Finding:
    """A finding whose command names a file, if the case is long."""
    command, _, token = finding.reproduce.rpartition(" --replay ")
    return attrs.evolve(finding, reproduce=f"{command} --replay {shortened(token)}") if command else finding


def _unusable(findings: list[Finding]) -> set[str | None]:
    """The backends that the module cannot run on."""
    return {finding.backend for finding in findings if finding.clause == "A18"}


def _checks_of(clause: str, results: Results) -> list[Check]:
    return [check for check in CHECKS.values() if clause in check.clauses and results.module_type in check.types]


def _outcome(clause: Clause, results: Results, findings: list[Finding]) -> ClauseOutcome:
    own = [finding for finding in findings if finding.clause == clause.id]
    how: list[str] = []
    backends: set[str] = set()
    for check in _checks_of(clause.id, results):
        examined_on = results.coverage.examined_on(check, clause.id)
        if examined_on is not None:
            how.append(check.how)
            backends.update(examined_on)
    for check in _checks_of(clause.id, results):
        backends -= {each for each in backends if results.coverage.obstacle(check, clause.id, each) is not None}
    is_kept = bool(backends) or any(
        results.coverage.examined_on(each, clause.id) == [] for each in _checks_of(clause.id, results)
    )
    return ClauseOutcome(
        id=clause.id,
        level=clause.level,
        text=clause.text,
        law=clause.law,
        status="broken" if own else "kept" if is_kept else "not_checked",
        how=how if own or is_kept else [],
        backends=sorted(backends),
        findings=own,
    )


# ── what was not examined ──


@attrs.frozen
class _Gap:
    """A clause that was to be examined, and was not on a backend; empty for one that takes no running."""

    clause: Clause
    backend: str
    reason: str


def _missing(results: Results, findings: list[Finding], profile: str) -> list[_Gap]:
    """What the run was asked to examine and has not."""
    clauses = clauses_for(results.module_type)  # type: ignore[arg-type]  # a known type
    unusable = _unusable(findings)
    backends = [name for name in _run_on(results) if name not in unusable]
    gaps = []
    for clause in clauses:
        checks = [check for check in _checks_of(clause.id, results) if results.job.covers(check, clause.id)]
        if not checks or any(check.name in results.coverage.static for check in checks):
            continue
        unread = [results.coverage.unread[check.name] for check in checks if check.name in results.coverage.unread]
        running = [] if profile == "static" else [check for check in checks if check.kind != "static"]
        running = running if results.has_steps or not unread else []
        if not running and unread:
            gaps.append(_Gap(clause, "", unread[0]))
        for backend in backends if running else ():
            reason = _reason(results, clause.id, running, backend)
            if reason is not None:
                gaps.append(_Gap(clause, backend, reason))
    return gaps


def _reason(results: Results, clause: str, checks: list[Check], backend: str) -> str | None:
    """Why a clause was not examined on a backend; None if it was, or if another backend has to show it."""
    coverage = results.coverage
    if backend in results.unmounted:
        reason = f"it could not be mounted on {backend}: {results.unmounted[backend]}"
        examined = [coverage.examined_on(check, clause) or [] for check in checks]
        return None if any(backend in each for each in examined) else reason
    obstacles = [coverage.obstacle(check, clause, backend) for check in checks]
    for obstacle in obstacles:
        if obstacle is not None:
            return obstacle
    covered = [coverage.steps[step] for check in checks if (step := f"{check.name}:{backend}") in coverage.steps]
    if not covered:
        return "the module could not be imported" if not results.has_steps else "no check of it was run"
    if any(backend in (coverage.examined_on(check, clause) or []) for check in checks):
        return None
    if not any(each.backends for each in covered):
        return None
    return DECLINED if results.has_declined(backend) else _absence(results)


def _absence(results: Results) -> str:
    return f"mount gave nothing that can be used as a {results.module_type}, so only mounting it was examined"


def _verdict(outcomes: list[ClauseOutcome], missing: list[_Gap], results: Results) -> Verdict:
    if any(outcome.status == "broken" and outcome.level == "required" for outcome in outcomes):
        return "violations"
    if any(gap.clause.level == "required" for gap in missing):
        return "unchecked"
    covered = [outcome for outcome in outcomes if _is_covered(outcome.id, results)]
    return "conforms" if any(outcome.status != "not_checked" for outcome in covered) else "unchecked"


def _is_covered(clause: str, results: Results) -> bool:
    return any(results.job.covers(check, clause) for check in _checks_of(clause, results))


def _notes(
    results: Results, outcomes: list[ClauseOutcome], missing: list[_Gap], verdict: Verdict, profile: str
) -> list[str]:
    """What limits the result; every clause that is missing is named with its reason."""
    notes = [note for note in results.notes if note != DECLINED]
    groups: dict[tuple[str, str], list[str]] = {}
    for clause in dict.fromkeys(gap.clause.id for gap in missing):
        by_reason: dict[str, list[str]] = {}
        for gap in missing:
            if gap.clause.id == clause:
                by_reason.setdefault(gap.reason, []).append(gap.backend)
        for reason, names in by_reason.items():
            groups.setdefault((reason, " and ".join(names)), []).append(clause)
    for (reason, backends), clauses in groups.items():
        listed = ", ".join(clauses)
        if reason == _absence(results):
            notes.append(f"on {backends} {reason}; not examined: {listed}")
        elif reason == DECLINED or reason.startswith("it could not be mounted"):
            needed = "" if verdict == "violations" or reason == DECLINED else "; give the configuration it needs"
            notes.append(f"{reason}{needed}; not examined: {listed}")
        elif not backends:
            notes += [f"{name} was not examined: {reason}" for name in clauses]
        else:
            notes.append(f"{listed} {'was' if len(clauses) == 1 else 'were'} not examined on {backends}: {reason}")
    unexamined = {outcome.id for outcome in outcomes if outcome.status == "not_checked"}
    is_asyncio_only = results.job.backends == ["asyncio"] and profile != "static" and "asyncio" not in results.unmounted
    if (
        "A18" in unexamined
        and is_asyncio_only
        and _is_covered("A18", results)
        and not any("A18" in each for each in notes)
    ):
        notes.append("A18 was not examined: that takes trio as well")
    return notes
