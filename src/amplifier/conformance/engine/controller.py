"""`check_module`: find a module, check it, report. The conductor of this room.

Static checks run here and execute nothing of the module. Everything else happens in worker processes: one as a rule,
another one for what is left whenever the module hangs or kills it. Above stand the doors: the command line, pytest and
`amplifier.conformance` itself.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

from amplifier.conformance.checks import all_checks as _all_checks  # noqa: F401 — importing the checks registers them
from amplifier.conformance.harness.check_registry import CHECKS, all_clauses, checks_for
from amplifier.conformance.harness.coverage import DECLINED, ClauseCoverage, StepCoverage, Unexamined
from amplifier.conformance.harness.mounted_module import Fault
from amplifier.conformance.report.fix_hints import hint_for
from amplifier.conformance.report.model import ClauseOutcome, Finding, Report, Status, Verdict
from amplifier.conformance.report.source_location import place_for
from amplifier.conformance.target.locate import Subject, find_subject
from amplifier.contracts import clauses_for
from amplifier.errors import ModuleLoadError

from .selection import refuse_foreign, refuse_missing_parts, refuse_unknown
from .step_runner import Job, token
from .worker import ABANDONED

PATIENCE = 120.0
"""Seconds without a word from the worker after which it is taken for dead."""
_MOST_WORKERS = 60
_LONGEST_LINE = 50_000_000
_ROOM = 500_000_000

Progress = Callable[[str, int, int], None]


async def check_module(
    target: str | Path,
    *,
    module_type: str | None = None,
    config: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    static: bool = False,
    thorough: bool = False,
    seed: int = 0,
    backends: Sequence[str] = ("asyncio", "trio"),
    only: Iterable[str] = (),
    replay: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Examine a module.

    Args:
        target: A folder, a .py file, the id of an installed module, or the name of an importable package.
        module_type: Its type, where neither the module nor its id says it.
        config: What to mount it with; ``{directory}`` in a text stands for a directory of each scene's own.
        plan: What else the plan of its session holds, such as ``agents``, for a module that reads it.
        static: Execute nothing of it.
        thorough: Draw more cases and try every suspension point.
        seed: Equal seeds draw equal cases.
        backends: What to run it on.
        only: Clauses or checks to restrict the examination to.
        replay: Show one finding again: what the report printed for it.
        progress: Called with the name of each step, how many are done, and how many there are.

    Raises:
        ModuleNotFoundError: There is no such module.
        ModuleLoadError: It cannot be a module, or its type is not known.
        MissingExtraError: The packages that running it takes are not installed; ``static`` does without them.
        ValueError: ``only``, ``replay`` or ``backends`` name something that there is not, or not for this type of module.
    """
    started = time.monotonic()
    only = only if isinstance(only, str) else list(only)
    refuse_unknown(backends, only, replay)
    if not static:
        refuse_missing_parts(backends)
    subject = find_subject(target, module_type)
    refuse_foreign(subject.module_type, static=static, only=only, replay=replay)
    job = Job(
        target=str(target),
        module_type=module_type,
        config=config or {},
        plan=plan or {},
        profile="thorough" if thorough else "quick",
        seed=seed,
        backends=list(backends),
        only=list(only),
        replay=replay,
    )
    examination = _Examination(subject, job, progress)
    examination.look()
    if not static:
        await examination.run()
    report = examination.report("static" if static else job.profile)
    refuse_foreign(report.type, static=static, only=only, replay=replay)  # for a type that only running it tells
    report.seconds = round(time.monotonic() - started, 2)
    return report


class _Examination:
    """What is known so far of one subject."""

    def __init__(self, subject: Subject, job: Job, progress: Progress | None) -> None:
        self._subject = subject
        self._job = job
        self._progress = progress
        self._type = subject.module_type
        self._faults: list[tuple[Fault, str, str | None]] = []
        self._tally = ClauseCoverage()
        self._failed_steps: dict[str, str] = {}
        self._steps: list[str] = []
        self._skip: list[str] = []
        self._unmounted: dict[str, str] = {}
        self._unimported = False
        self._notes: list[str] = []
        self._declared_backends: list[str] = ["asyncio", "trio"]

    # ── static ──

    def look(self) -> None:
        """Run the checks that execute nothing; a finding that is shown again takes none of them."""
        if self._job.replay is not None:
            return
        for check in checks_for(self._type or "tool", ("static",)):
            if not self._is_wanted(check.name, check.clauses):
                continue
            try:
                for fault in check.run(self._subject):
                    self._faults.append((fault, check.name, None))
            except Unexamined as why:
                self._tally.leave_unread(check.name, str(why))
            else:
                self._tally.read(check.name)

    def _is_wanted(self, name: str, clauses: Iterable[str]) -> bool:
        only = set(self._job.only)
        return not only or name in only or bool(only.intersection(clauses))

    # ── dynamic ──

    async def run(self) -> None:
        """Run workers until every step is done or given up."""
        for _ in range(_MOST_WORKERS):
            if await self._run_worker():
                return
        self._notes.append(f"gave up after {_MOST_WORKERS} worker processes; the rest was not checked")

    async def _run_worker(self) -> bool:
        """One worker; True when nothing is left to do."""
        job = attrs.evolve(self._job, skip=self._skip)
        self._doing = ""
        with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory(prefix="conformance-", dir=_quick()) as home:
            process = await anyio.open_process(
                [sys.executable, "-m", "amplifier.conformance.engine.worker"],
                stderr=said,
                env=_environment(home),
                start_new_session=True,
            )
            try:
                ended = await self._converse(process, json.dumps(attrs.asdict(job)).encode())
            finally:
                with anyio.CancelScope(shield=True):
                    _kill(process)
                    await process.aclose()
            said.seek(0)
            last_words = said.read().decode(errors="replace")[-2000:]
        if ended:
            return True
        if not self._doing:
            raise ModuleLoadError(f"the worker process did not start: {last_words}", module_id=self._subject.module_id)
        self._give_up_step(process.returncode, last_words)
        return self._unimported

    async def _converse(self, process: anyio.abc.Process, job: bytes) -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(job)
        await process.stdin.aclose()
        lines = BufferedByteReceiveStream(process.stdout)
        while True:
            with anyio.move_on_after(PATIENCE) as patience:
                try:
                    line = await lines.receive_until(b"\n", _LONGEST_LINE)
                except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                    return False
            if patience.cancelled_caught:
                return False
            if self._hear(json.loads(line)):
                return True

    def _hear(self, line: dict[str, Any]) -> bool:
        step = str(line.get("step", ""))
        if "start" in line:
            self._doing = line["start"]
            self._tell()
        elif "fault" in line:
            check, _, backend = step.partition(":")
            self._faults.append((Fault(**line["fault"]), check, backend))
        elif "done" in line:
            self._skip.append(line["done"])
            if line["done"] not in self._failed_steps:
                self._tally.see(
                    line["done"], StepCoverage(**{**line["sight"], "backends": set(line["sight"]["backends"])})
                )
        elif "unmounted" in line:
            self._failed_steps[step] = self._unmounted[step.partition(":")[2]] = line["unmounted"]
        elif "broken" in line:
            self._failed_steps[step] = line["broken"]
            self._notes.append(f"the check {step} could not be completed: {line['broken']}")
        elif "note" in line:
            self._notes += [line["note"]] if line["note"] not in self._notes else []
        elif "unimported" in line:
            self._unimported = True
            what = f"it cannot be imported: {line['unimported']}"
            self._faults.append((Fault(clause="A1", what=what, location=line.get("location")), "import", None))
            return True
        elif "loaded" in line:
            self._type = line["loaded"]["type"]
            self._declared_backends = line["loaded"]["backends"]
        elif "steps" in line and not self._steps:
            self._steps = line["steps"]
        return "end" in line

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._doing, len(self._skip), max(len(self._steps), 1))

    def _give_up_step(self, returncode: int | None, said: str) -> None:
        """The worker ended in the middle of a step: blame the subject unless its last words already do."""
        if self._doing == "import":
            self._unimported = True
            self._faults.append(
                (Fault(clause="A1", what="importing it never ended, or ended the process"), "import", None)
            )
            return
        self._skip.append(self._doing)
        check, _, backend = self._doing.partition(":")
        self._notes.append(f"the check {self._doing} could not be completed: its process was ended")
        if returncode != ABANDONED:
            how = f"exit code {returncode}" if returncode not in (None, -signal.SIGKILL) else "it stood still"
            what = (
                f"it ended or stopped the process that ran it ({how}); a module must do neither. {said[-300:]}".strip()
            )
            self._faults.append((Fault(clause="A17", what=what), check, backend))

    # ── the result ──

    def report(self, profile: str) -> Report:
        """Everything that was found."""
        if self._type is None:
            raise ModuleLoadError(
                f"the type of {self._subject.module_id!r} is not known; name it with --type, or declare "
                "__amplifier_module_type__ in the module",
                module_id=self._subject.module_id,
            )
        self._judge_backends()
        findings = self._findings()
        outcomes: list[ClauseOutcome] = []
        reasons: list[str] = []
        for clause in clauses_for(self._type):  # type: ignore[arg-type]  # a type that find_subject accepts
            own = [found for found in findings if found.clause == clause.id]
            deciding = [check for check in CHECKS.values() if clause.id in check.clauses and self._type in check.types]
            places = {check: where for check in deciding if (where := self._tally.where(check, clause.id)) is not None}
            status: Status = "broken" if own else "kept" if places else "not_checked"
            if status == "not_checked":
                reasons += [f"{clause.id} was not examined: {why}" for why in self._tally.reasons(deciding)]
            outcomes.append(
                ClauseOutcome(
                    id=clause.id,
                    level=clause.level,
                    text=clause.text,
                    law=clause.law,
                    status=status,
                    how=[check.how for check in places],
                    backends=sorted({backend for where in places.values() for backend in where}),
                    findings=own,
                )
            )
        self._notes += [*reasons, *self._blind_spots(outcomes, profile)]
        return Report(
            module=self._subject.module_id,
            type=self._type,
            source=self._subject.target,
            verdict=self._verdict(findings, outcomes, profile),
            profile=profile,
            seed=self._job.seed,
            backends=[] if profile == "static" else [b for b in self._job.backends if b in self._declared_backends],
            clauses=outcomes,
            limitations=self._limitations(),
            notes=self._notes,
        )

    def _blind_spots(self, outcomes: list[ClauseOutcome], profile: str) -> list[str]:
        """Why clauses that take running the module were not examined."""
        missed = {outcome.id for outcome in outcomes if outcome.status == "not_checked"}
        found = []
        absent = [backend for backend in self._tally.absent if backend not in self._unmounted]
        if missed and absent and DECLINED not in self._notes:
            where = f"on {' and '.join(absent)}"
            found.append(
                f"{where} mount gave nothing that can be used as a {self._type}, so only mounting it was examined"
            )
        alone = self._job.backends == ["asyncio"] and profile != "static" and not self._tally.absent
        if "A18" in missed and alone and self._is_wanted("every_module.runs_on_both_backends", ["A18"]):
            found.append("A18 was not examined: that takes trio as well")
        return found

    def _verdict(self, findings: list[Finding], outcomes: list[ClauseOutcome], profile: str) -> Verdict:
        if any(found.level == "required" for found in findings):
            return "violations"
        if profile != "static" and (self._unmounted or self._failed_steps):
            for backend, what in self._unmounted.items():
                self._notes.append(f"it could not be mounted on {backend}: {what}; give the configuration it needs")
            return "unchecked"
        return "conforms" if any(outcome.status == "kept" for outcome in outcomes) else "unchecked"

    def _judge_backends(self) -> None:
        """A module that works on asyncio alone has to say so."""
        if "trio" not in self._unmounted or "asyncio" in self._unmounted or "asyncio" not in self._job.backends:
            return
        what = f"it can be mounted on asyncio but not on trio: {self._unmounted.pop('trio')}"
        self._failed_steps = {k: v for k, v in self._failed_steps.items() if not k.endswith(":trio")}
        self._faults.append((Fault(clause="A18", what=what), "every_module.mounts", "trio"))

    def _limitations(self) -> list[str]:
        missing = [name for name in ("asyncio", "trio") if name not in self._declared_backends]
        return [f"declares that it does not run on {name}" for name in missing]

    def _findings(self) -> list[Finding]:
        clauses = all_clauses()
        found: dict[tuple[str, str], Finding] = {}
        # On a backend that it cannot run on, everything else that is found follows from that.
        lame = {backend for fault, _, backend in self._faults if fault.clause == "A18"}
        for fault, check, backend in self._faults:
            if backend in lame and fault.clause != "A18":
                continue
            key = (fault.clause, check)
            seen = found.get(key)
            if seen is not None:
                if backend and seen.backend and backend not in seen.backend:
                    found[key] = attrs.evolve(seen, backend=f"{seen.backend}, {backend}")
                continue
            found[key] = Finding(
                clause=fault.clause,
                level=clauses[fault.clause].level,
                what=fault.what,
                check=check,
                backend=backend,
                input=fault.input,
                cancelled_at=fault.cancelled_at,
                location=fault.location or self._place_for(fault),
                hint=hint_for(fault.clause),
                reproduce=self._command(check, backend, fault.input),
            )
        return list(found.values())

    def _place_for(self, fault: Fault) -> str | None:
        return place_for(self._subject, self._type or "tool", fault.clause, fault.cancelled_at)

    def _command(self, check: str, backend: str | None, case: Any) -> str:
        words = ["amplifier", "module", "validate", self._subject.target]
        words += ["--type", self._job.module_type] if self._job.module_type else []
        words += ["--config", json.dumps(self._job.config)] if self._job.config else []
        words += ["--plan", json.dumps(self._job.plan)] if self._job.plan else []
        words += ["--seed", str(self._job.seed)] if self._job.seed else []
        words += ["--thorough"] if self._job.profile == "thorough" else []
        is_drawn = check in CHECKS and CHECKS[check].inputs is not None
        replay = ["--replay", token(f"{check}:{backend}", case if is_drawn else None)]
        alone = ["--only", "A1"] if check == "import" else ["--static"]
        words += alone if backend is None else replay
        return shlex.join(words)


def _quick() -> str | None:
    """Where files are kept in memory, if there is such a place and room enough: modules that sync theirs wait there less."""
    place = Path("/dev/shm")
    try:
        free = shutil.disk_usage(place).free if os.access(place, os.W_OK | os.X_OK) else 0
    except OSError:
        return None
    return str(place) if free > _ROOM else None


def _environment(home: str) -> dict[str, str]:
    """What the worker may know of ours: how to run Python, and no credentials."""
    kept = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {
        **found,
        "PYTHONPATH": path,
        "HOME": home,
        "TMPDIR": home,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _kill(process: anyio.abc.Process) -> None:
    """End the worker and everything it started that stayed in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
