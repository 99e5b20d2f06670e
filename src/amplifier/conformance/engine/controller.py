"""Locate a module, examine it, and report.

Static checks run in this process and execute nothing of the module.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

from amplifier._internal.processes import send_to_group
from amplifier._internal.programs import python_command
from amplifier.conformance.checks.registry import checks_for
from amplifier.conformance.engine.job import (
    Job,
    cache_directory,
    expanded,
    reject_inapplicable,
    reject_unknown,
    reject_unknown_modules,
    require_packages,
)
from amplifier.conformance.engine.results import (
    ANOTHER_PROCESS,
    IMPORT,
    BackendRun,
    Progress,
    Results,
    WorkerExit,
    make_report,
)
from amplifier.conformance.report import Report
from amplifier.conformance.target.calls import machine_load
from amplifier.conformance.target.locate import BACKENDS, find_target
from amplifier.conformance.target.mounted import Unexamined
from amplifier.conformance.target.process import HAS_REAPER
from amplifier.errors import ModuleLoadError
from amplifier.models import to_json

# Everything except the static checks runs in worker processes, one for each backend, in parallel.
# Whenever the module hangs or ends its worker, another worker runs the remaining steps.

SILENCE_SECONDS = 20.0
"""Maximum time without a message, after which the worker counts as dead."""
_LAST_SECONDS = 10.0
"""Time limit for the worker's parent to end the remaining processes."""
_MAX_LINE_BYTES = 50_000_000
_MIN_FREE_BYTES = 500_000_000

Receive = Callable[[dict[str, Any]], bool]
"""Processes a message of the worker, and returns True if it was the last."""


async def run_worker(job: Job, receive: Receive) -> WorkerExit:
    """Run one worker process until its last message, its end, or a long silence."""
    with (
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryDirectory(prefix="conformance-", dir=_memory_directory()) as home,
    ):
        process = await anyio.open_process(
            python_command("-m", "amplifier.conformance.engine.worker"),
            stderr=stderr,
            env=_environment(home, job),
            start_new_session=True,
        )
        try:
            finished, was_silent = await _exchange(process, to_json(job).encode(), receive)
            if not (finished or was_silent):
                # The process is about to exit, and asyncio would lose its exit code to a signal.
                with anyio.move_on_after(_LAST_SECONDS):
                    await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if HAS_REAPER:
                    # The parent ends every process that the worker started.
                    with anyio.move_on_after(_LAST_SECONDS), suppress(ProcessLookupError):
                        process.terminate()
                        await process.wait()
                # The signal ends every process that stayed in the group.
                send_to_group(process.pid, signal.SIGKILL)
                await process.aclose()
        stderr.seek(0)
        tail = stderr.read().decode(errors="replace")[-2000:]
    return WorkerExit(
        finished=finished, was_silent=was_silent, returncode=process.returncode, stderr=tail
    )


async def _exchange(process: anyio.abc.Process, job: bytes, receive: Receive) -> tuple[bool, bool]:
    """Send the job and pass on messages until the last one, the end, or a long silence.

    Returns:
        Whether the last message came, and whether the worker was silent for too long.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(job)
    await process.stdin.aclose()
    lines = BufferedByteReceiveStream(process.stdout)
    while True:
        with anyio.move_on_after(SILENCE_SECONDS * machine_load()) as silence:
            try:
                line = await lines.receive_until(b"\n", _MAX_LINE_BYTES)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return False, False
        if silence.cancelled_caught:
            return False, True
        if receive(json.loads(line)):
            return True, False


def _memory_directory() -> str | None:
    """Return a directory in memory with enough free space, or None if there is none.

    Modules that sync their files wait less there.
    """
    place = Path("/dev/shm")
    try:
        free = shutil.disk_usage(place).free if os.access(place, os.W_OK | os.X_OK) else 0
    except OSError:
        return None
    return str(place) if free > _MIN_FREE_BYTES else None


def _environment(home: str, job: Job) -> dict[str, str]:
    """Return the worker's environment: the variables that Python needs, and no credentials.

    Texts have different hashes on each backend, unless the job gives a seed for them.
    """
    seed = BACKENDS.index(job.backends[0]) if job.hash_seed is None else job.hash_seed
    kept = ("PATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "HOME": home,
        "TMPDIR": home,
        "LC_ALL": "C.UTF-8",
        # On Linux, a file that is opened without an encoding depends on the locale.
        "PYTHONUTF8": "0" if sys.platform == "linux" else "1",
        "PYTHONHASHSEED": str(seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(cache_directory() / "hypothesis"),
    }


_MAX_HANGS = 3
"""Maximum number of steps on one backend in which the module ends its process.

Such a module breaks its contract, and each of these steps costs seconds.
"""
_SECONDS = {"quick": 50.0, "thorough": 900.0}
"""Maximum time of the steps on one backend, without the time in which there was no processor.

The steps that remain then count as not examined.
"""


async def check_module(
    target: str | Path,
    *,
    module_type: str | None = None,
    config: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    static: bool = False,
    thorough: bool = False,
    strict: bool = False,
    seed: int = 0,
    backends: Sequence[str] = ("asyncio", "trio"),
    only: Iterable[str] = (),
    replay: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Examine a module.

    Args:
        target: A folder, a .py file, the id of an installed module, or the name of an importable
            package.
        module_type: The type of the module, or None if the module or its id names it.
        config: The configuration to mount it with. ``{directory}`` in a text is replaced by a
            separate directory for each session.
        plan: Other sections of the plan, such as ``agents``, for a module that reads them.
        static: True to execute nothing of the module.
        thorough: True to draw more cases and try every suspension point.
        strict: True to count broken recommendations, so that a module with one does not conform.
        seed: Equal seeds draw equal cases.
        backends: The backends to run it on.
        only: Clauses or checks to restrict the examination to.
        replay: The replay token that a report printed for a finding, to reproduce it.
        progress: Called with the name of each step, the number of finished steps, and the number of
            all steps.

    Raises:
        ModuleNotFoundError: There is no such module.
        ModuleLoadError: It cannot be a module, or its type is unknown.
        MissingExtraError: The packages for running it are not installed. ``static`` needs none.
        ValueError: ``only``, ``replay``, ``backends`` or ``plan`` hold a name that is unknown or
            does not apply to this type of module.
    """
    if progress is not None:
        progress("starting", 0, 1)
    only = only if isinstance(only, str) else list(only)
    replay = None if replay is None else expanded(replay)
    reject_unknown(backends, only, replay)
    if not static:
        require_packages(backends)
    reject_unknown_modules(plan or {})
    located = find_target(target, module_type)
    selected = only if replay is None else [replay.partition(":")[0]]
    reject_inapplicable(located.module_type, selected, static=static)
    job = Job(
        target=located,
        module_type=module_type,
        config=config or {},
        plan=plan or {},
        profile="thorough" if thorough else "quick",
        seed=seed,
        backends=list(backends) if replay is None else [replay.split(":")[1]],
        only=list(only),
        replay=replay,
    )
    started = time.monotonic()
    profile = "static" if static else job.profile
    results = Results(job=job, profile=profile, module_type=located.module_type, progress=progress)
    _run_static_checks(results)
    if not static:
        await _run_workers(results)
        await _compare_processes(results)
    report = make_report(results)
    report.seconds = round(time.monotonic() - started, 2)
    # Check again, because some types are only known after the import.
    reject_inapplicable(report.type, selected, static=static)
    if strict and report.recommendations:
        report.verdict = "violations"
    return report


def _run_static_checks(results: Results) -> None:
    """Run the checks that execute nothing."""
    for check in checks_for(results.module_type or "tool", ("static",)):
        if not results.job.selects(check):
            continue
        try:
            for fault in check.run(results.job.target):
                results.add_fault(fault, check.name)
        except Unexamined as reason:
            results.unread[check.name] = str(reason)
        else:
            results.static.add(check.name)


async def _run_workers(results: Results) -> None:
    """Run the workers of all backends until every step is done or given up."""
    problems: list[ModuleLoadError] = []

    async def run_backend(run: BackendRun) -> None:
        try:
            await _run_backend(results, run)
        except ModuleLoadError as error:
            problems.append(error)

    async with anyio.create_task_group() as group:
        for run in results.runs.values():
            group.start_soon(run_backend, run)
    if problems:
        raise problems[0]


async def _compare_processes(results: Results) -> None:
    """Report answers that depend on the hashes of texts.

    Answers of two processes may also differ by chance, by the time or by the process. So two more
    processes decide, each with the hashes of one of them.
    """
    seen = results.answers_of_processes()
    if len(seen) < len(BACKENDS) or seen[0] == seen[1]:
        return
    controls = []
    for hash_seed in range(len(BACKENDS)):
        job = attrs.evolve(
            results.job, backends=list(BACKENDS[:1]), only=[ANOTHER_PROCESS], hash_seed=hash_seed
        )
        control = Results(job=job, profile=results.profile, module_type=results.module_type)
        await _run_workers(control)
        controls += control.answers_of_processes()
    if len(controls) == len(BACKENDS):
        results.compare_processes(seen, controls)


async def _run_backend(results: Results, run: BackendRun) -> None:
    """Run one worker after another until every step on a backend is done or given up."""
    limit = _SECONDS[results.job.profile]
    while True:
        run.current_step = ""
        job = attrs.evolve(
            results.job,
            backends=[run.backend],
            skip=run.finished,
            has_hung=bool(run.given_up),
            seconds=limit - run.seconds,
        )
        ended = await run_worker(job, partial(results.receive, run))
        if ended.finished:
            return
        if not run.current_step:
            module_id = results.job.target.module_id
            raise ModuleLoadError(
                f"the worker process did not start: {ended.stderr}", module_id=module_id
            )
        results.give_up_step(run, ended)
        if run.current_step == IMPORT:
            return
        if len(run.given_up) >= _MAX_HANGS or ended.was_silent:
            results.give_up(
                run, f"the module has hung, or ended its process, in {' and '.join(run.given_up)}"
            )
            return
        if run.seconds >= limit:
            results.give_up(run, f"the examination on {run.backend} took more than {limit:g} s")
            return
