"""What a crash or a failing disk leaves of a store: nothing acknowledged is lost, nothing is invented.

Images: the log of a process that was killed, cut, zeroed or overwritten from a byte on. Limits: files may not grow beyond a size, so that the
system refuses one write after the other; the steps are those of `tests/modules/context/test_context_persistent_faults.py`.
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from amplifier.store import Conversation, StoreDamagedError, encode_message
from tests.modules.context import test_context_persistent_faults as disk
from tests.modules.context.test_context_persistent import stored
from tests.modules.context.test_context_persistent_damage import TAILS

from ..parts import BACKENDS, Chunk, Outcome

MESSAGES = 25
LARGEST = 120_000
"""Bytes of a file with which no step of a trial is refused."""


def _write_and_kill(folder: Path) -> tuple[Path, list[dict[str, Any]], list[int]]:
    """What a killed process leaves, the messages that it stored, and the length of the log after each."""
    chance = random.Random(11)
    messages: list[dict[str, Any]] = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": f"{number} " + "ü{\n" * chance.randint(0, 30),
        }
        for number in range(MESSAGES)
    ]
    conversation = Conversation(folder / "working" / "s", "s")
    conversation.open()
    lengths = []
    for message in messages:
        conversation.append([encode_message(message)[0]])
        lengths.append((folder / "working" / "store.db-wal").stat().st_size)
    image = folder / "image"
    shutil.copytree(folder / "working", image, ignore=shutil.ignore_patterns("*-shm"))
    conversation.close()
    return image, messages, lengths


def check_images(outcome: Outcome, tail: str, step: int) -> None:
    """Open every ``step``-th image; what is read is a beginning of what was written, and the next message is kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image, messages, lengths = _write_and_kill(folder)
        whole = (image / "store.db-wal").read_bytes()
        for at in range(0, len(whole), step):
            torn = TAILS[tail](whole, at)
            root = folder / "root"
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(image, root)
            (root / "store.db-wal").write_bytes(torn)
            before = sum(torn[:length] == whole[:length] for length in lengths)
            outcome.cases += 1
            where = f"{tail} at byte {at}"
            try:
                found = stored(root)
            except StoreDamagedError:
                # Transactions behind the damage: that is no torn end, and reporting it is right. A cut leaves none.
                outcome.count("reported as damaged")
                if tail in ("cut", "zeros"):
                    outcome.fail(f"{where}: a torn end was taken for damage")
                continue
            if tail == "hole" and before < len(messages) - 2:
                outcome.fail(f"{where}: messages behind the damage are lost, and no one is told")
            if found != messages[:before]:
                outcome.fail(f"{where}: {len(found)} messages were read, {before} are whole")
                continue
            conversation = Conversation(root / "s", "s")
            conversation.open()
            conversation.append([encode_message(messages[0])[0]])
            conversation.close()
            if stored(root) != [*messages[:before], messages[0]]:
                outcome.fail(f"{where}: the next message was not kept")


@contextmanager
def _limited(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def _trial(root: Path, size: int) -> tuple[list[Any], list[Any] | None]:
    """What was acknowledged while no file could grow beyond a size, and what was in memory then; None if it was not even opened."""
    context = disk.make(root)
    expected: list[Any] = []
    with _limited(size):
        try:
            await context.open()
        except OSError:
            return [], None
        for step in disk.STEPS:
            try:
                await disk.take(context, step)
            except OSError:
                continue
            expected = disk.after(step, expected)
        in_memory = await context.get_messages()
        await context.close()
    return expected, in_memory


def check_limits(outcome: Outcome, backend: str, step: int) -> None:
    """Try every ``step``-th size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in range(0, LARGEST, step):
            root = Path(folder) / str(size)
            expected, in_memory = anyio.run(_trial, root, size, backend=backend)
            outcome.cases += 1
            if in_memory is not None and in_memory != expected:
                outcome.fail(f"limit {size}: memory shows something else than was acknowledged")
            if (found := stored(root)) != expected:
                outcome.fail(f"limit {size}: {found} is stored, {expected} was acknowledged")


def run(kind: str, step: int, backend: str = "asyncio") -> Outcome:
    """Images with one kind of tail, or sizes of files."""
    outcome = Outcome()
    if kind == "limits":
        check_limits(outcome, backend, step)
        outcome.count("limits", outcome.cases)
    else:
        check_images(outcome, kind, step)
        outcome.count("images", outcome.cases)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """Every 50th byte and every 200th size; a small share takes fewer."""
    images = [Chunk(f"log, {tail}", {"kind": tail, "step": round(50 / share)}) for tail in TAILS]
    limits = [
        Chunk(
            f"limits on {backend}",
            {"kind": "limits", "backend": backend, "step": round(200 / share)},
        )
        for backend in BACKENDS
    ]
    return [*images, *limits]
