"""Starts one chunk in a process of its own, so that a crash or a hang is a failure of that chunk, and memory is measured alone.

What a chunk of the whole programme has found is kept, so that a programme that was stopped goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import attrs

from tests._support.processes import processor_times
from tests._support.tree import ROOT, SOURCE, python_files

from .parts import Chunk, FaultClass, Outcome

_TAIL = 1_500
"""Characters of the output of a chunk that broke off, for the report."""

FOLDER = ROOT / ".fault-programme"
"""Has what chunks have found, by the sources they ran with, and the report."""


def outcome_of(fault_class: FaultClass, chunk: Chunk, folder: Path = FOLDER) -> Outcome:
    """What a chunk finds. One that has run with these sources, and has not failed, is not run again."""
    what = hashlib.sha256(
        json.dumps([fault_class.name, chunk.arguments], sort_keys=True).encode()
    ).hexdigest()[:24]
    file = folder / digest_of_sources() / f"{fault_class.name}-{what}.json"
    if file.exists():
        return Outcome(**json.loads(file.read_text()))
    outcome = run_in_child(fault_class, chunk)
    if not outcome.failures:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(attrs.asdict(outcome)))
        new.replace(file)
    return outcome


@cache
def digest_of_sources() -> str:
    """A digest of all Python files under test."""
    digest = hashlib.sha256()
    for path in python_files(SOURCE):
        digest.update(
            path.relative_to(SOURCE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:16]


def run_in_child(
    fault_class: FaultClass,
    chunk: Chunk,
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> Outcome:
    """Run a chunk and wait for it.

    Args:
        fault_class: Its class.
        chunk: The chunk.
        environment: Instead of this process's.
        seconds: Instead of the class's own limit.
    """
    command = [
        sys.executable,
        "-m",
        "tests.fault_programme.child",
        fault_class.name,
        json.dumps(chunk.arguments),
    ]
    limit = seconds or fault_class.seconds
    with (
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what it leaves can be killed with it, and Ctrl-C here is no fault there
        ) as child
    ):
        try:
            output = _output_of(child, limit)
        finally:  # also after Ctrl-C
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    if output is None:
        return Outcome(failures=[f"{chunk.name}: hangs, or has run for {limit:g} s"])
    last = output.rstrip().rpartition("\n")[2]
    try:
        found = json.loads(last)["outcome"]
    except (ValueError, TypeError, KeyError):
        return Outcome(
            failures=[f"{chunk.name}: ended with code {child.returncode}: {output[-_TAIL:]}"]
        )
    return Outcome(**found)


def _output_of(child: subprocess.Popen[bytes], limit: float) -> str | None:
    """What a chunk wrote; None if it has run for ``limit`` seconds, or has for so long neither run nor waited for a processor.

    Seconds on the wall would end a chunk that a busy machine makes slow, and count as caught a bug that no one has noticed.
    """
    known: dict[str, tuple[int, int]] = {}
    busy, idle, looked = 0.0, 0.0, time.monotonic()
    while True:
        try:
            return child.communicate(timeout=1.0)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            now, times = time.monotonic(), processor_times(child.pid)
            ran, waited = (
                sum(t[i] - known.get(name, (0, 0))[i] for name, t in times.items()) / 1e9
                for i in (0, 1)
            )
            busy, idle = busy + ran, idle + max(0.0, now - looked - ran - waited)
            known, looked = times, now
            if max(busy, idle) >= limit:
                return None
