"""The same module gets the same report on an idle and on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.conformance import check_module
from amplifier.models import to_dict
from tests.conformance.modules import SOUND_TOOL, write_module

FAULTY_SLOW_TOOL = SOUND_TOOL.replace(
    'text = input.get("text")', 'text = input.get("text")\n            import anyio; await anyio.sleep(7)'
).replace("output=text", "output={text}")


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes that use all the CPU they get."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def examined(file: Path) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        report = to_dict(await check_module(file, only=["T5", "T9", "A9"]))
        assert report.pop("seconds") > 0
        return report

    return anyio.run(run)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_report_does_not_depend_on_what_else_the_machine_does(tmp_path):
    file = write_module(tmp_path, FAULTY_SLOW_TOOL)
    alone = examined(file)
    with busy_machine():
        beside = examined(file)
    assert beside == alone
    assert alone["verdict"] == "violations", alone["notes"]
