"""What a crash or a failing disk leaves of the conversation log and the step journal: nothing acknowledged is lost, nothing is invented.

Images: the file cut, zeroed or overwritten from every byte on. System calls: each call to the disk fails once, for ever, half-way,
or is the last one of the process; the disk and its faults are those of `tests/modules/test_context_persistent_faults.py`.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.modules.context_persistent import LogDamagedError, _message_log
from amplifier.modules.context_persistent._log_records import CONVERSATION, STEPS, encode_message, new_file
from amplifier.modules.context_persistent._message_log import MessageLog
from tests.modules import test_context_persistent_faults as disk
from tests.modules.test_context_persistent import stored
from tests.modules.test_context_persistent_damage import FORMATS, TAILS

from ..parts import BACKENDS, Chunk, Outcome
from .hostile_inputs import STEPS_OF_A_TURN

MESSAGES = 25
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
MOST_SKIPPED = 7
"""There are few calls to the disk, so that even the smallest share lets every seventh fail."""
WAYS = ("refuse", "refuse for ever", "half", "short", "die")


def _conversation() -> tuple[list[bytes], Any]:
    """Messages of many sizes, the same on every run."""
    chance = random.Random(11)
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": f"{number} " + "ü{\n" * chance.randint(0, 30)}
        for number in range(MESSAGES)
    ]
    whole = new_file("s", 1, [encode_message(message)[0] for message in messages])[0]
    return whole.splitlines(keepends=True), CONVERSATION


def _journal() -> tuple[list[bytes], Any]:
    texts = [encode_message(step)[0] for step in STEPS_OF_A_TURN * 3]
    return new_file("s", 1, texts, STEPS)[0].splitlines(keepends=True), STEPS


FILES: dict[str, Callable[[], tuple[list[bytes], Any]]] = {
    "conversation": _conversation,
    "conversation of an earlier release": lambda: (FORMATS["unlinked"], CONVERSATION),
    "journal": _journal,
}


def check_images(outcome: Outcome, file: str, tail: str, step: int) -> None:
    """Open every ``step``-th image; what is read is a beginning of what was written, and the next record is kept."""
    lines, kind = FILES[file]()
    whole = b"".join(lines)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)  # which bytes are kept, not when the disk has them
        os.chmod(folder, 0o700)
        log = MessageLog(Path(folder), "s", kind)
        target = Path(folder) / kind.file
        target.write_bytes(whole)
        everything = log.open()
        log.close()
        for at in range(starts[1], len(whole), step):
            image = TAILS[tail](whole, at)
            if image == whole:  # the line already ended there
                continue
            target.write_bytes(image)
            before = sum(start <= at for start in starts[2:])
            outcome.cases += 1
            where = f"{file}, {tail} at byte {at}"
            try:
                found = log.open()
            except LogDamagedError:
                # Whole records behind the damage: that is no torn end, and reporting it is right. A cut leaves none.
                outcome.count("reported as damaged")
                if tail in ("cut", "zeros"):
                    outcome.fail(f"{where}: a torn end was taken for damage")
                continue
            finally:
                log.close()
            if found != everything[:before]:
                outcome.fail(f"{where}: {len(found)} records were read, {before} are whole")
                continue
            log.open()
            log.append([encode_message(everything[0])[0]])
            log.close()
            if log.open() != [*everything[:before], everything[0]]:
                outcome.fail(f"{where}: the next record was not kept")
            log.close()


async def _fail_call(outcome: Outcome, root: Path, patch: pytest.MonkeyPatch, at: int, way: str, error: int) -> None:
    where = f"{way} with {errno.errorcode[error]} at call {at}"
    system = disk.System(at, way, error)
    patch.setattr(_message_log, "os", system)
    trial = disk.Trial(root)
    try:
        if await trial.open():
            for step in disk.STEPS:
                await trial.take(step)
                if await trial.context.get_messages() != trial.expected:
                    outcome.fail(f"{where}: memory shows something else than was acknowledged after {step}")
            await trial.context.close()
    except (disk.Dead, BaseExceptionGroup):
        if not system.dead:
            raise
        trial.context._log.close()
    finally:
        patch.setattr(_message_log, "os", os)
    found = stored(root)
    if way == "die":
        is_right = found in (trial.expected, trial.doing)
    elif way == "refuse for ever":  # nothing could be taken back: a refused record may be in the file
        is_right = found[: len(trial.expected)] == trial.expected and len(found) <= len(trial.expected) + 1
    else:
        is_right = found == trial.expected
    if not is_right:
        outcome.fail(f"{where}: {found} is stored, {trial.expected} was acknowledged")
    if {caught.errno for caught in trial.errors} - {error}:
        outcome.fail(f"{where}: other errors came out: {trial.errors}")


async def check_calls(outcome: Outcome, way: str, error: int, step: int) -> None:
    """Let every ``step``-th call to the disk go wrong."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        count = await disk.calls_in_all(Path(folder), patch)
        for at in range(1, count + 1, step):
            outcome.cases += 1
            await _fail_call(outcome, Path(folder) / str(at), patch, at, way, error)


def run(kind: str, step: int, way: str = "", backend: str = "asyncio") -> Outcome:
    """Images of one file with every kind of tail, or system calls that fail in one way with every error."""
    outcome = Outcome()
    if kind == "calls":
        for error in ERRORS:
            anyio.run(check_calls, outcome, way, error, step, backend=backend)
        outcome.count("failed system calls", outcome.cases)
    else:
        for tail in TAILS:
            check_images(outcome, kind, tail, step)
        outcome.count("images", outcome.cases)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """Every byte and every call; a small share takes every n-th."""
    step = round(1 / share)
    images = [Chunk(file, {"kind": file, "step": step}) for file in FILES]
    calls = [
        Chunk(f"{way} on {backend}", {"kind": "calls", "way": way, "backend": backend, "step": min(step, MOST_SKIPPED)})
        for way in WAYS
        for backend in BACKENDS
    ]
    return [*images, *calls]
