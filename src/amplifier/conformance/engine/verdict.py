"""From the results of a run to its report: the outcome of every clause, the verdict and the notes."""

from __future__ import annotations

import attrs

from amplifier.conformance.checks.registry import CHECKS, Check, checks_for
from amplifier.conformance.engine.results import Results
from amplifier.conformance.report.model import Report, Verdict
from amplifier.conformance.report.outcome import ClauseOutcome, Finding
from amplifier.conformance.target.advice import missing_package_hint
from amplifier.conformance.target.locate import BACKENDS
from amplifier.conformance.target.mounted import DECLINED, Fault
from amplifier.contracts import Clause, clauses_for
from amplifier.errors import ModuleLoadError


def make_report(results: Results, profile: str) -> Report:
    """Judge everything that was found.

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
    _judge_trio(results)
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


def _judge_trio(results: Results) -> None:
    """Blame a module that mounts on asyncio alone without declaring it; the steps on trio then count no longer."""
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
    return list(merged.values())


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
        checks = [check for check in _checks_of(clause.id, results) if results.job.judges(check, clause.id)]
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
    judged = [outcome for outcome in outcomes if _is_judged(outcome.id, results)]
    return "conforms" if any(outcome.status != "not_checked" for outcome in judged) else "unchecked"


def _is_judged(clause: str, results: Results) -> bool:
    return any(results.job.judges(check, clause) for check in _checks_of(clause, results))


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
            advice = missing_package_hint(results.job.target, reason) or "give the configuration it needs"
            needed = "" if verdict == "violations" or reason == DECLINED else f"; {advice}"
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
        and _is_judged("A18", results)
        and not any("A18" in each for each in notes)
    ):
        notes.append("A18 was not examined: that takes trio as well")
    return notes
