"""``python -m tests.fault_programme``: runs what has not been run yet and writes ``faults.json`` and ``faults.md``.

Stopped at any time, by Ctrl-C or ``--minutes``, it goes on from there when it is started again. Chunks whose sources have changed
and chunks that failed are run again. ``--only CLASS --share 0.1`` runs a tenth of one class; each class has a share of its own. The exit code is 0 only if everything has been run and nothing failed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from tests._support.tree import ROOT

from .catalogue import CLASSES
from .launch import kill_running, run_in_child
from .parts import Chunk, FaultClass, Outcome
from .progress import Progress, StateError, digest_of_sources, forget
from .report import summary, table


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault_programme", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CLASSES), help="run this class only; may be repeated")
    parser.add_argument("--minutes", type=float, help="start no chunk after so many minutes")
    parser.add_argument("--share", type=float, default=1.0, help="share of the programme to run, 1 for all of it")
    parser.add_argument("--jobs", type=int, default=2, help="chunks that run at the same time")
    parser.add_argument("--folder", type=Path, default=ROOT / ".fault-programme", help="for the state and the report")
    parser.add_argument("--fresh", action="store_true", help="forget what has been run")
    options = parser.parse_args(arguments)
    if not 0 < options.share <= 1:
        parser.error(f"--share is {options.share:g}; expected a number above 0, at most 1")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected at least 1")
    return options


def run_chunks(
    classes: Mapping[str, FaultClass], progress: Progress, *, jobs: int, seconds: float | None
) -> Iterator[tuple[FaultClass, Chunk, Outcome]]:
    """Run what is left, several chunks at a time, and keep each result before it is passed on."""
    until = None if seconds is None else time.monotonic() + seconds
    left = [
        (each, chunk)
        for each in classes.values()
        for chunk in each.chunks(progress.shares[each.name])
        if not progress.is_done(each.name, chunk.name)
    ]
    running: dict[Future[tuple[Outcome, float]], tuple[FaultClass, Chunk]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while left or running:
                while left and len(running) < jobs and (until is None or time.monotonic() < until):
                    each, chunk = left.pop(0)
                    running[pool.submit(_timed, each, chunk)] = each, chunk
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    each, chunk = running.pop(future)
                    outcome, took = future.result()
                    progress.note(each.name, chunk.name, outcome, took)
                    yield each, chunk, outcome
        except BaseException:  # Ctrl-C; the pool would wait for chunks that take minutes
            kill_running()
            raise


def _timed(fault_class: FaultClass, chunk: Chunk) -> tuple[Outcome, float]:
    began = time.monotonic()
    return run_in_child(fault_class, chunk), time.monotonic() - began


def main(arguments: list[str]) -> int:
    """Run, report, and return the exit code."""
    options = read_arguments(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run is using {options.folder}; wait for it or take another --folder", file=sys.stderr)
            return 2
        return run_programme(options)


def run_programme(options: argparse.Namespace) -> int:
    """The same, for the only process that uses the folder."""
    if options.fresh:
        forget(options.folder)
    chosen = {name: each for name, each in CLASSES.items() if not options.only or name in options.only}
    try:
        progress = Progress(options.folder, digest_of_sources())
        for name in chosen:
            progress.begin(name, options.share)
    except StateError as exc:
        print(exc, file=sys.stderr)
        return 2
    seconds = None if options.minutes is None else options.minutes * 60
    try:
        for each, chunk, outcome in run_chunks(chosen, progress, jobs=options.jobs, seconds=seconds):
            verdict = f"{len(outcome.failures)} FAILURES" if outcome.failures else "ok"
            print(f"{each.name}: {chunk.name}: {outcome.cases:,} {each.unit}: {verdict}", flush=True)
            for problem in outcome.failures:
                print(f"    {problem}", flush=True)
    finally:
        found = summary(CLASSES, progress)
        (options.folder / "faults.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        (options.folder / "faults.md").write_text(table(found))
    print(table(found))
    failed = any(found["classes"][name]["failures"] for name in chosen)
    left = any(found["classes"][name]["chunks_run"] < found["classes"][name]["chunks"] for name in chosen)
    if left:
        print("not everything has been run; the same command goes on from here")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
