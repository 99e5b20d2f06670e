"""From the results of a run to its report: the outcome of every clause, the verdict and the notes."""

from __future__ import annotations

import attrs

from amplifier.conformance.harness.check_registry import CHECKS
from amplifier.conformance.harness.coverage import DECLINED
from amplifier.conformance.harness.mounted_module import Fault
from amplifier.conformance.report.model import Report, Verdict
from amplifier.conformance.report.outcome import ClauseOutcome, Finding
from amplifier.conformance.target.locate import BACKENDS
from amplifier.conformance.target.missing_package import missing_package_hint
from amplifier.contracts import Clause, clauses_for
from amplifier.errors import ModuleLoadError

from .results import Results


def make_report(results: Results, profile: str) -> Report:
    """Judge everything that was found.

    Raises:
        ModuleLoadError: The module's type is still not known.
    """
    target, job = results.job.target, results.job
    if results.module_type is None:
        raise ModuleLoadError(
            f"the type of {target.module_id!r} is not known; name it with --type, or declare "
            "__amplifier_module_type__ in the module",
            module_id=target.module_id,
        )
    _judge_trio(results)
    findings = _merged(results.findings)
    clauses = clauses_for(results.module_type)  # type: ignore[arg-type]  # a type that find_target accepts
    outcomes = [_outcome(clause, results, findings) for clause in clauses]
    verdict = _verdict(results, outcomes, profile)
    notes = [*results.notes, *_unexamined(results, outcomes, profile)]
    if verdict == "unchecked" and profile != "static":
        for backend, reason in results.unmounted.items():
            advice = missing_package_hint(target, reason) or "give the configuration it needs"
            notes.append(f"it could not be mounted on {backend}: {reason}; {advice}")
    return Report(
        module=target.module_id,
        type=results.module_type,
        source=target.reference,
        verdict=verdict,
        profile=profile,
        seed=job.seed,
        backends=[] if profile == "static" else [name for name in job.backends if name in results.backends],
        clauses=outcomes,
        limitations=[f"declares that it does not run on {name}" for name in BACKENDS if name not in results.backends],
        notes=notes,
        selected=job.only if job.replay is None else [job.replay.rpartition(":")[0]],
    )


def _judge_trio(results: Results) -> None:
    """Blame a module that mounts on asyncio alone without declaring it; the steps on trio then count no longer."""
    unmounted = results.unmounted
    if "trio" not in unmounted or "asyncio" in unmounted or "asyncio" not in results.job.backends:
        return
    what = f"it can be mounted on asyncio but not on trio: {unmounted.pop('trio')}"
    results.failed_steps = {step: why for step, why in results.failed_steps.items() if not step.endswith(":trio")}
    results.add_fault(Fault(clause="A18", what=what), "every_module.mounts", "trio")


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for each clause and check, with all backends on which it was found."""
    # On a backend that the module cannot run on, everything else that is found follows from that.
    unusable = {finding.backend for finding in findings if finding.clause == "A18"}
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.backend in unusable and finding.clause != "A18":
            continue
        first = merged.setdefault((finding.clause, finding.check), finding)
        if finding.backend and first.backend and finding.backend not in first.backend:
            merged[finding.clause, finding.check] = attrs.evolve(first, backend=f"{first.backend}, {finding.backend}")
    return list(merged.values())


def _outcome(clause: Clause, results: Results, findings: list[Finding]) -> ClauseOutcome:
    own = [finding for finding in findings if finding.clause == clause.id]
    how: list[str] = []
    backends: set[str] = set()
    for check in CHECKS.values():
        if clause.id in check.clauses and results.module_type in check.types:
            examined_on = results.coverage.backends_of(check, clause.id)
            if examined_on is not None:
                how.append(check.how)
                backends.update(examined_on)
    return ClauseOutcome(
        id=clause.id,
        level=clause.level,
        text=clause.text,
        law=clause.law,
        status="broken" if own else "kept" if how else "not_checked",
        how=how,
        backends=sorted(backends),
        findings=own,
    )


def _verdict(results: Results, outcomes: list[ClauseOutcome], profile: str) -> Verdict:
    if any(outcome.status == "broken" and outcome.level == "required" for outcome in outcomes):
        return "violations"
    if profile != "static" and (results.unmounted or results.failed_steps):
        return "unchecked"
    return "conforms" if any(outcome.status == "kept" for outcome in outcomes) else "unchecked"


def _unexamined(results: Results, outcomes: list[ClauseOutcome], profile: str) -> list[str]:
    """Notes on why clauses were not examined."""
    missed = [outcome.id for outcome in outcomes if outcome.status == "not_checked"]
    notes = [
        f"{clause} was not examined: {results.coverage.unread[check.name]}"
        for clause in missed
        for check in CHECKS.values()
        if clause in check.clauses and results.module_type in check.types and check.name in results.coverage.unread
    ]
    absent = results.coverage.backends_without_instance()
    unused = [backend for backend in absent if backend not in results.unmounted]
    if missed and unused and DECLINED not in results.notes:
        notes.append(
            f"on {' and '.join(unused)} mount gave nothing that can be used as a {results.module_type}, so only "
            "mounting it was examined"
        )
    asyncio_only = results.job.backends == ["asyncio"] and profile != "static" and not absent
    if "A18" in missed and asyncio_only and results.job.selects(CHECKS["every_module.runs_on_both_backends"]):
        notes.append("A18 was not examined: that takes trio as well")
    return notes
