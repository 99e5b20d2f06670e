"""From a fault that a check has seen to a finding: what an author needs to reproduce it and to fix it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from amplifier.conformance.harness.check_registry import CHECKS, all_clauses
from amplifier.conformance.harness.mounted_module import Fault
from amplifier.conformance.report.outcome import Finding
from amplifier.conformance.report.source_location import source_location

from .job import Job, replay_token

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
        reproduce=_command(job, check, backend, fault.input),
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
        is_drawn = CHECKS[check].inputs is not None
        words += ["--replay", replay_token(f"{check}:{backend}", case if is_drawn else None)]
    return shlex.join(words)
