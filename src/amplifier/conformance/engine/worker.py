"""The process in which a module is run: reads a job and writes messages, one JSON line each, to standard output.

The module cannot harm the controller: what it prints is discarded, a call that cannot be stopped ends this process, and
the controller starts another one for the remaining steps. Started as ``python -m amplifier.conformance.engine.worker``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from threading import get_native_id
from typing import Any, NoReturn

import anyio
import attrs

from amplifier.conformance.engine.job import Job
from amplifier.conformance.engine.results import ABANDONED, IMPORT, IMPORT_HINT, TOO_SLOW, make_finding
from amplifier.conformance.engine.steps import Emit, Runner
from amplifier.conformance.report.model import Finding
from amplifier.conformance.target.calls import remember_hang
from amplifier.conformance.target.locate import LoadedTarget, load
from amplifier.conformance.target.mounted import Fault
from amplifier.conformance.target.process import mark_descendants
from amplifier.conformance.target.virtual_clock import KIT_THREAD, let_time_jump, machine_load, worked_time
from amplifier.errors import ModuleLoadError
from amplifier.loading._importing import advise_on_alias
from amplifier.models import from_json

_ALIVE_INTERVAL = 1.0
_STEP_SECONDS = {"quick": 25.0, "thorough": 400.0}
"""What one step may take, not counting the time in which there was no processor for this process."""


def main() -> int:
    """Do the job on standard input."""
    job = from_json(Job, sys.stdin.buffer.read())
    output = _take_over_stdout()
    mark_descendants()
    let_time_jump()
    if job.has_hung:
        remember_hang()
    logging.raiseExceptions = False
    writing = threading.RLock()

    def emit(message: dict[str, Any]) -> None:
        line = json.dumps(message, default=repr, ensure_ascii=True).encode() + b"\n"
        with writing:
            output.write(line)
            output.flush()

    def abandon(finding: Finding) -> NoReturn:
        emit({"finding": attrs.asdict(finding)})
        os._exit(ABANDONED)

    emit({"start": IMPORT})
    try:
        loaded = anyio.run(_load, job, backend=job.backends[0])
    except BaseException as error:  # noqa: BLE001 — third-party code: importing may raise anything, exit included
        what = advise_on_alias(f"it cannot be imported: {type(error).__name__}: {error}", error)
        # Our own error is about an entry point that leads nowhere, for which the clause has the advice.
        hint = None if isinstance(error, ModuleLoadError) else IMPORT_HINT
        fault = Fault(clause="A1", what=what, location=job.target.location_of(error), hint=hint)
        finding = make_finding(fault, job, module_type=job.target.module_type, check=IMPORT, backend=None)
        emit({"finding": attrs.asdict(finding)})
    else:
        if "amplifier_core" in sys.modules:
            place = sys.modules["amplifier_core"].__file__
            emit({"note": f"it imports amplifier_core, here an alias of this kernel ({place})"})
        runner = Runner(loaded, job, emit, abandon)
        steps = [check.name for check in runner.steps()]
        emit(
            {
                "module_type": loaded.module_type,
                "backends": list(loaded.backends),
                "needs_island": loaded.needs_island,
                "steps": steps,
            }
        )
        watched = (runner, emit, job, get_native_id())
        threading.Thread(target=_watch, args=watched, name=f"{KIT_THREAD} watch", daemon=True).start()
        runner.run()
    emit({"end": True})
    return 0


async def _load(job: Job) -> LoadedTarget:
    """Import the module as the kernel does, while an event loop runs: a module that runs one of its own fails here, at that line."""
    return load(job.target, job.config, job.plan)


def _watch(runner: Runner, emit: Emit, job: Job, main_thread: int) -> None:
    """End the process when a step, or all of them, take longer than they may: a last resort, for checks count calls."""
    step, started, begun = "", worked_time(main_thread), worked_time(main_thread)
    while True:
        time.sleep(_ALIVE_INTERVAL)
        emit({"alive": runner.step})
        if runner.step != step:
            step, started = runner.step, worked_time(main_thread)
        load = machine_load()
        if step and worked_time(main_thread) - started > _STEP_SECONDS[job.profile] * load:
            why = f"it took more than {_STEP_SECONDS[job.profile]:g} s"
        elif step and worked_time(main_thread) - begun > job.seconds * load:
            why = "the examination took too long"
        else:
            continue
        emit({"failed": why, "step": step})
        emit({"done": step, "coverage": {}, "seconds": (worked_time(main_thread) - started) / load})
        os._exit(TOO_SLOW)


def _take_over_stdout() -> Any:
    """Keep standard output for messages; what the module prints is discarded."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return os.fdopen(kept, "wb")


if __name__ == "__main__":
    sys.exit(main())
