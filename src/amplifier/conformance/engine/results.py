"""Collect the results of static checks and worker processes, and make the report.

A clause that no check examined must not count as kept.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from amplifier.conformance.checks.registry import CHECKS, Check, all_clauses, checks_for
from amplifier.conformance.engine.job import Job, replay_token, shortened
from amplifier.conformance.oracles.calls import first_difference
from amplifier.conformance.report import ClauseOutcome, Finding, Report
from amplifier.conformance.target.locate import BACKENDS, unknown_type
from amplifier.conformance.target.mounted import DECLINED, Fault, StepCoverage
from amplifier.conformance.target.source import environment_in, source_location
from amplifier.conformance.target.use import is_secret
from amplifier.contracts import Clause, clauses_for

ABANDONED = 3
"""The exit code of a worker after a call of the module that could not be stopped."""
TOO_SLOW = 4
"""The exit code of a worker that took too long."""
IMPORT = "import"
"""The name of the step before all checks."""
IMPORT_HINT = (
    "Install what it imports, and declare that in its dependencies. "
    "Let importing the module succeed and end at once, also while an event loop runs, "
    "as it does when the kernel imports it; leave work that may fail or take long to mount, "
    "and await it there instead of calling anyio.run or asyncio.run."
)
ANOTHER_PROCESS = "every_module.answers_the_same_in_another_process"
Told = tuple[str, Any, str | None]
"""A call, its input, and its answer, which is None if it was not the same each time."""
ENDS_PROCESS_HINT = (
    "Let no call end the process: no os._exit, sys.exit or signal, and no crash of an extension."
)


def _command(job: Job, check: str, backend: str | None, case: Any) -> str:
    arguments = ["amplifier", "module", "validate", job.target.reference]
    arguments += ["--type", job.module_type] if job.module_type else []
    arguments += ["--config", json.dumps(job.config)] if job.config else []
    arguments += ["--plan", json.dumps(job.plan)] if job.plan else []
    arguments += ["--seed", str(job.seed)] if job.seed else []
    arguments += ["--thorough"] if job.profile == "thorough" else []
    if check == IMPORT:
        arguments += ["--only", "A1"]
    elif check == ANOTHER_PROCESS:
        arguments += ["--only", ANOTHER_PROCESS]
    elif backend is None:
        arguments += ["--static"]
    else:
        arguments += ["--replay", shortened(replay_token(f"{check}:{backend}", case))]
    return shlex.join(arguments)


NO_SUCCESS = (
    "no call succeeded, so that nothing shows it; "
    "give examples in the schema, or the settings it needs by --config"
)


@attrs.frozen(kw_only=True)
class WorkerExit:
    """How a worker ended.

    Attributes:
        finished: True if it sent its last message.
        was_silent: True if it was killed after a long time without a message.
        returncode: Its exit code, negative for a signal, or None if it has not ended.
        stderr: The end of its output to standard error.
    """

    finished: bool
    was_silent: bool
    returncode: int | None
    stderr: str


Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the number of finished steps, and the number of all steps."""


@attrs.define(kw_only=True)
class BackendRun:
    """The steps on one backend, which workers do one after another.

    Attributes:
        backend: The backend.
        steps: The names of the checks of all steps.
        finished: The steps that are done or given up.
        current_step: The step that the worker has started. Empty before the first.
        given_up: The steps in which a worker ended.
        seen: The coverage of each completed step.
        failed: The reason why a step could not be completed, by step.
        notes: Limits of the result.
        unmounted: The reason why the module could not be mounted, or None if it could.
        seconds: The time that the finished steps took.
    """

    backend: str
    steps: list[str] = attrs.field(factory=list)
    finished: list[str] = attrs.field(factory=list)
    current_step: str = ""
    given_up: list[str] = attrs.field(factory=list)
    seen: dict[str, StepCoverage] = attrs.field(factory=dict)
    failed: dict[str, str] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    unmounted: str | None = None
    seconds: float = 0.0

    def fail(self, step: str, reason: str) -> None:
        """Note why a step could not be completed, unless a reason is already known."""
        self.failed.setdefault(step, f"the check {step} could not be completed: {reason}")

    @property
    def is_absent(self) -> bool:
        """True if nothing of the module was ever mounted, although checks looked for it."""
        has_looked = any(
            covered.mount_attempted and not CHECKS[name].without_instance
            for name, covered in self.seen.items()
        )
        return has_looked and not any(covered.instance_seen for covered in self.seen.values())

    def obstacle(self, check: Check, clause: str) -> str | None:
        """Return the reason why a check could not fully examine a clause, or None if it could."""
        covered = self.seen.get(check.name)
        if check.name in self.failed or covered is None:
            return self.failed.get(check.name)
        if (
            covered.cut_short is not None
            or clause not in check.needs_success
            or not covered.instance_seen
        ):
            return covered.cut_short
        return None if any(step.succeeded for step in self.seen.values()) else NO_SUCCESS

    def examined_on(self, check: Check, clause: str) -> list[str]:
        """Return the backends on which the step of a check has examined a clause.

        That is this backend, both if the check compares them, or none.
        """
        covered = self.seen.get(check.name)
        if covered is None or self.obstacle(check, clause) is not None:
            return []
        # A check that mounts nothing has read everything, unless the module is absent.
        has_read = not covered.mount_attempted and not self.is_absent
        was_there = covered.instance_seen or clause in check.without_instance or has_read
        return covered.backends if was_there else []


@attrs.define(kw_only=True)
class Results:
    """The results of one job.

    Attributes:
        job: The job.
        profile: The name of the profile, which is ``static`` if nothing is run.
        progress: Called at the start of each step. None to report no progress.
        module_type: The type of the module. None until it is known.
        backends: The backends that the module can be examined on.
        needs_island: True if it declares asyncio only, and runs on an asyncio island on trio.
        runs: The steps on each backend.
        static: Names of the static checks that came to a result.
        unread: The reason why another static check came to no result, by name.
    """

    job: Job
    profile: str
    progress: Progress | None = None
    module_type: str | None
    backends: list[str] = attrs.field(factory=lambda: list(BACKENDS))
    needs_island: bool = False
    runs: dict[str, BackendRun] = attrs.field(init=False)
    static: set[str] = attrs.field(factory=set)
    unread: dict[str, str] = attrs.field(factory=dict)
    _faults: dict[tuple[str, str | None, str], Fault] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.runs = {name: BackendRun(backend=name) for name in self.job.backends}

    @property
    def has_steps(self) -> bool:
        """True if there were steps to run, which means that the module could be imported."""
        return any(run.steps for run in self.runs.values())

    def add_fault(self, fault: Fault, check: str, backend: str | None = None) -> None:
        """Add a fault that this process found, unless the worker has found it too."""
        self._faults.setdefault((check, backend, fault.clause), fault)

    def receive(self, run: BackendRun, message: dict[str, Any]) -> bool:
        """Process a message of the worker of a backend, and return True if it was the last."""
        match message:
            case {"start": step}:
                run.current_step = step
                if self.progress is not None:
                    done = sum(len(other.finished) for other in self.runs.values())
                    total = sum(len(other.steps) for other in self.runs.values())
                    self.progress(f"{step}:{run.backend}", done, max(total, 1))
            # The smallest case that shows the fault comes last.
            case {"fault": members, "step": step}:
                fault = Fault(**members)
                self._faults[step, None if step == IMPORT else run.backend, fault.clause] = fault
            case {"done": step, "coverage": coverage, "seconds": seconds}:
                run.finished.append(step)
                run.seconds += seconds
                if step not in run.failed:
                    run.seen[step] = StepCoverage(**coverage)
            case {"unmounted": reason, "step": step}:
                run.failed[step] = run.unmounted = reason
            case {"failed": reason, "step": step}:
                run.fail(step, reason)
            case {"gave_up": reason}:
                self.give_up(run, reason)
            case {"note": note}:
                run.notes += [note] if note not in run.notes else []
            case {
                "module_type": module_type,
                "backends": backends,
                "needs_island": needs_island,
                "steps": steps,
            }:
                self.needs_island = needs_island
                self.module_type = module_type
                self.backends = backends
                run.steps = run.steps or steps
        return "end" in message

    def give_up_step(self, run: BackendRun, ended: WorkerExit) -> None:
        """Skip the step in which the worker ended, and report a fault unless the worker did so."""
        step = run.current_step
        run.finished.append(step)
        if ended.returncode != TOO_SLOW:
            run.given_up.append(step)
        if step == IMPORT:
            what = "importing it never ended, or ended the process"
            self.add_fault(Fault(clause="A1", what=what, hint=IMPORT_HINT), IMPORT)
            return
        run.fail(step, "its process was ended")
        if ended.returncode not in (ABANDONED, TOO_SLOW):
            killed = ended.returncode in (None, -signal.SIGKILL)
            how = "it stopped responding" if killed else f"exit code {ended.returncode}"
            what = f"it ended or stopped the process that ran it ({how}); a module must do neither."
            what = f"{what} {ended.stderr[-300:]}"
            hint = None if killed else ENDS_PROCESS_HINT
            self.add_fault(Fault(clause="A17", what=what.strip(), hint=hint), step, run.backend)

    def give_up(self, run: BackendRun, reason: str) -> None:
        """Skip all other steps on a backend."""
        for step in run.steps:
            if step not in run.finished:
                run.failed[step] = reason
        run.finished = list(run.steps)

    # ── faults ──

    def findings(self) -> list[Finding]:
        """Return one finding for each clause and check, with all its backends.

        The findings are in the order of the checks.
        """
        order = [check.name for check in checks_for(self.module_type or "tool")]
        place = {name: number for number, name in enumerate(order)}
        # On a backend that the module cannot run on, all other faults follow from that one.
        unusable = self._unusable()
        merged: dict[tuple[str, str], list[str | None]] = {}
        for check, backend, clause in sorted(
            self._faults,
            key=lambda key: (
                place.get(key[0], -1),
                -1 if key[1] is None else BACKENDS.index(key[1]),
            ),
        ):
            if backend not in unusable or clause == "A18":
                merged.setdefault((clause, check), []).append(backend)
        return [
            self._finding(check, backends, clause) for (clause, check), backends in merged.items()
        ]

    def _finding(self, check: str, backends: list[str | None], clause_id: str) -> Finding:
        """Return the finding of a fault, completed from its clause, its check and the job."""
        fault, clause, target = (
            self._faults[check, backends[0], clause_id],
            all_clauses()[clause_id],
            self.job.target,
        )
        location = fault.location or source_location(
            target, self.module_type or "tool", clause, fault.cancelled_at
        )
        file = None if location is None else target.path_of(location)
        return Finding(
            clause=clause.id,
            level=clause.level,
            what=fault.what,
            check=check,
            backend=", ".join(name for name in backends if name is not None) or None,
            input=fault.input,
            cancelled_at=fault.cancelled_at,
            location=location,
            file=None if file is None else str(file),
            hint=fault.hint or clause.hint,
            reproduce=_command(self.job, check, backends[0], fault.case),
        )

    def _unusable(self) -> set[str | None]:
        """Return the backends that the module cannot run on."""
        return {backend for _, backend, clause in self._faults if clause == "A18"}

    def report_asyncio_only(self) -> None:
        """Report a module that mounts on asyncio alone without declaring it.

        Its steps on trio are then not counted.
        """
        asyncio, trio = (self.runs.get(name) for name in BACKENDS)
        if (
            asyncio is not None
            and asyncio.unmounted is None
            and trio is not None
            and trio.unmounted is not None
        ):
            what = f"it can be mounted on asyncio but not on trio: {trio.unmounted}"
            trio.unmounted = None
            self.add_fault(Fault(clause="A18", what=what), "every_module.mounts", "trio")

    def answers_of_processes(self) -> list[list[Told]]:
        """Return the answers for a comparison, a list for each worker that has reached them."""
        return [
            run.seen[ANOTHER_PROCESS].answers
            for run in self.runs.values()
            if ANOTHER_PROCESS in run.seen
        ]

    def compare_processes(self, seen: list[list[Told]], controls: list[list[Told]]) -> None:
        """Report an answer that depends on the hashes of texts.

        Args:
            seen: The answers in two processes, in which texts have different hashes.
            controls: The answers in two more processes, each with the hashes of one of the two.
        """
        for usual, other, usual_again, other_again in zip(*seen, *controls, strict=False):
            name, given, text = usual
            is_same_call = usual[:2] == other[:2]
            is_repeated = usual == usual_again and other == other_again
            if not is_same_call or not is_repeated or text is None or other[2] is None:
                continue
            if text != other[2]:
                difference = first_difference(text, other[2])
                what = "in another process, in which texts have other hashes,"
                what = f"{what} {name} gave {difference}"
                hint = "Sort what comes out of a set, and use no hash of a text."
                fault = Fault(clause="A25", what=what, input=given, hint=hint)
                self.add_fault(fault, ANOTHER_PROCESS, BACKENDS[0])
                return

    # ── coverage ──

    def run_on(self) -> list[str]:
        """Return the backends of the job that the module declares."""
        return [name for name in self.job.backends if name in self.backends]

    def checks_of(self, clause: str) -> list[Check]:
        """Return the checks that examine a clause."""
        return [
            check
            for check in CHECKS.values()
            if clause in check.clauses and self.module_type in check.types
        ]

    def is_asked(self, clause: str) -> bool:
        """Return True if the job asks for a clause."""
        return any(self.job.covers(check, clause) for check in self.checks_of(clause))

    def _examined_on(self, check: Check, clause: str) -> set[str]:
        return {name for run in self.runs.values() for name in run.examined_on(check, clause)}

    def outcome(self, clause: Clause, findings: list[Finding]) -> ClauseOutcome:
        """Return the outcome of a clause."""
        own = [finding for finding in findings if finding.clause == clause.id]
        checks = self.checks_of(clause.id)
        done = [
            check
            for check in checks
            if check.name in self.static or self._examined_on(check, clause.id)
        ]
        backends = {
            name
            for check in done
            for name in self._examined_on(check, clause.id)
            if name not in self.runs
            or all(self.runs[name].obstacle(other, clause.id) is None for other in checks)
        }
        is_kept = bool(backends) or any(check.name in self.static for check in checks)
        return ClauseOutcome(
            id=clause.id,
            level=clause.level,
            text=clause.text,
            law=clause.law,
            status="broken" if own else "kept" if is_kept else "not_checked",
            how=[check.how for check in done] if own or is_kept else [],
            backends=sorted(backends),
            findings=own,
        )

    def gaps(self, clause: str) -> Iterator[tuple[str, str]]:
        """Yield each backend on which a clause should have been examined, and why it was not.

        The backend is empty if the module need not be run for the clause.
        """
        checks = self.checks_of(clause)
        if not self.is_asked(clause) or any(check.name in self.static for check in checks):
            return
        unread = [self.unread[check.name] for check in checks if check.name in self.unread]
        running = [check for check in checks if check.kind != "static" and self.profile != "static"]
        if unread and not (running and self.has_steps):
            yield "", unread[0]
            return
        for backend in self.run_on() if running else ():
            reason = None if backend in self._unusable() else self._reason(clause, running, backend)
            if reason is not None:
                yield backend, reason

    def _reason(self, clause: str, checks: list[Check], backend: str) -> str | None:
        """Return the reason why a clause was not examined on a backend.

        Return None if it was, or if another backend has to show it.
        """
        run = self.runs[backend]
        reasons = [run.obstacle(check, clause) for check in checks]
        obstacles = [reason for reason in reasons if reason is not None]
        was_examined = not obstacles and any(
            backend in self._examined_on(check, clause) for check in checks
        )
        if run.unmounted is not None and not was_examined:
            return f"it could not be mounted on {backend}: {run.unmounted}"
        if obstacles or was_examined:
            return obstacles[0] if obstacles else None
        covered = [run.seen[check.name] for check in checks if check.name in run.seen]
        if not covered:
            return (
                "no check of it was run" if self.has_steps else "the module could not be imported"
            )
        if not any(step.backends for step in covered):
            return None
        absence = (
            f"mount gave nothing that can be used as a {self.module_type}, "
            "so only mounting it was examined"
        )
        return DECLINED if DECLINED in run.notes else absence


def make_report(results: Results) -> Report:
    """Return the report on all results.

    Raises:
        ModuleLoadError: The module's type is still unknown.
    """
    target, job = results.job.target, results.job
    if results.module_type is None:
        raise unknown_type(target.module_id)
    results.report_asyncio_only()
    findings = results.findings()
    # `find_target` has accepted the type.
    clauses = clauses_for(results.module_type)  # type: ignore[arg-type]
    outcomes = [results.outcome(clause, findings) for clause in clauses]
    gaps = {clause: gap for clause in clauses if (gap := list(results.gaps(clause.id)))}
    asked = [outcome for outcome in outcomes if results.is_asked(outcome.id)]
    report = Report(
        module=target.module_id,
        type=results.module_type,
        source=target.reference,
        verdict="conforms",
        profile=results.profile,
        seed=job.seed,
        backends=[] if results.profile == "static" else results.run_on(),
        clauses=outcomes,
        limitations=[
            *(
                f"declares that it does not run on {name}"
                for name in BACKENDS
                if name not in results.backends
            ),
            *(
                ["declares asyncio only: on trio it runs on an asyncio island"]
                if results.needs_island
                else []
            ),
        ],
        selected=job.only if job.replay is None else [job.replay.rpartition(":")[0]],
    )
    if report.violations:
        report.verdict = "violations"
    elif any(clause.level == "required" for clause in gaps) or all(
        outcome.status == "not_checked" for outcome in asked
    ):
        report.verdict = "unchecked"
    report.notes = _notes(results, report, {clause.id: gap for clause, gap in gaps.items()})
    return report


def _notes(results: Results, report: Report, gaps: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Return the limits of the result, which name every missing clause with its reason."""
    notes = [note for run in results.runs.values() for note in run.notes if note != DECLINED]
    groups: dict[tuple[str, str], list[str]] = {}
    for clause, gap in gaps.items():
        for reason in dict.fromkeys(reason for _, reason in gap):
            backends = " and ".join(backend for backend, other in gap if other == reason)
            groups.setdefault((reason, backends), []).append(clause)
    for (reason, backends), clauses in groups.items():
        is_config = reason.startswith("it could not be mounted") and report.verdict != "violations"
        needed = "; give the configuration it needs" if is_config else ""
        place = f" on {backends}" if backends else ""
        notes.append(f"{reason}{needed}; not examined{place}: {', '.join(clauses)}")
    withheld = [] if report.ok or report.profile == "static" else _withheld_keys(results)
    if withheld:
        names, verb = " and ".join(withheld), "are" if len(withheld) > 1 else "is"
        notes.append(
            f"{names} {verb} set here and kept from the module, which gets a made-up value; "
            "give a key that it needs by --config"
        )
    on_asyncio = (
        results.job.backends == ["asyncio"]
        and report.backends
        and not results.runs["asyncio"].unmounted
    )
    if on_asyncio and results.is_asked("A18") and "A18" in report.unexamined and "A18" not in gaps:
        notes.append("A18 was not examined: that takes trio as well")
    return list(dict.fromkeys(notes))


def _withheld_keys(results: Results) -> list[str]:
    """Return the variables with keys that the source reads and that are set for the caller."""
    names = environment_in(results.job.target)
    return [name for name in names if name in os.environ and is_secret(name)]
