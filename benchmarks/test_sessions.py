"""Opening a session of five modules, a turn that does nothing, and closing it again."""

from __future__ import annotations

import compileall
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.duel import fight
from benchmarks.kernels import OURS, OURS_ON_TRIO, PLAN, THEIRS, Kernel, Prepare, Work


def living(plan: dict[str, Any] | None = None) -> Prepare:
    """A whole life of a session as each kernel's documentation shows it; without a plan, of modules in process."""

    async def prepare(kernel: Kernel) -> Work:
        loader = kernel.loader(trivial=True) if plan is None else None

        async def work() -> None:
            async with kernel.session(loader, plan or PLAN) as session:
                await session.execute("go")

        return work

    return prepare


@pytest.mark.parametrize(("kernel", "words"), [(OURS, ""), (OURS_ON_TRIO, ", trio")])
def test_open_a_trivial_turn_and_close(board, kernel, words):
    theirs, ours = THEIRS.timed(living()), kernel.timed(living())
    board.duel(f"session: open, turn, close{words}", theirs, ours)


@pytest.mark.orientation
def test_open_and_close_by_hand(board):
    """Without the task group of ``async with``: what `initialize` and `cleanup` cost."""

    async def prepare(kernel: Kernel) -> Work:
        loader = kernel.loader(trivial=True)

        async def work() -> None:
            session = kernel.session(loader)
            await session.initialize()
            await session.execute("go")
            await session.cleanup()

        return work

    board.duel("session: initialize, turn, cleanup", THEIRS.timed(prepare), OURS.timed(prepare))


_MODULE = """
from benchmarks.kernels import {kernel}

__amplifier_module_type__ = {kind!r}

_mount = {kernel}.modules(trivial=True)[{module_id!r}]


async def mount(coordinator, config=None):
    await _mount(coordinator, config)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[dict[Kernel, dict[str, Any]]]:
    """A distribution with five modules for each kernel, and the plans that name them."""
    plans, lines = {}, ["[amplifier.modules]"]
    kinds = {
        "loop": "orchestrator",
        "context": "context",
        "provider": "provider",
        "tool": "tool",
        "hooks": "hook",
    }
    for kernel, name in ((OURS, "OURS"), (THEIRS, "THEIRS")):
        ids = {}
        for word, kind in kinds.items():
            ids[word] = f"{word}-installed-{name.lower()}"
            package = f"amplifier_module_{ids[word].replace('-', '_')}"
            text = _MODULE.format(kind=kind, kernel=name, module_id=f"{word}-bench")
            (tmp_path / f"{package}.py").write_text(text, encoding="utf-8")
            lines.append(f"{ids[word]} = {package}:mount")
        plans[kernel] = {
            "session": {"orchestrator": ids["loop"], "context": ids["context"]},
            **{f"{word}s": [{"module": ids[word]}] for word in ("provider", "tool")},
            "hooks": [{"module": ids["hooks"]}],
        }
    metadata = tmp_path / "bench_modules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bench-modules\nVersion: 1.0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    compileall.compile_dir(tmp_path, quiet=1)  # as an installation does
    os.utime(
        tmp_path, (1_700_000_000, 1_700_000_000)
    )  # long ago, not within this tick of the file system's clock
    sys.path.append(str(tmp_path))
    importlib.invalidate_caches()
    yield plans
    sys.path.remove(str(tmp_path))


def test_open_through_entry_points(board, installed):
    def side(kernel: Kernel) -> Any:
        return kernel.timed(living(installed[kernel]))

    count = len(list(importlib.metadata.distributions()))
    note = f"{count} distributions installed; the published kernel reads the metadata of all of them for every module"
    board.score("session from entry points, warm", fight(side(THEIRS), side(OURS)), note=note)
