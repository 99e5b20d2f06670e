"""The same module gets the same report: with the same seed, on an idle and on a busy machine."""

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
from tests.conformance.corpus_modules import corpus_module
from tests.conformance.modules import SOUND_TOOL, check, write_module


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("tool/faulty/T10_current_input_on_self", ["T10"]),
        pytest.param("context/faulty/C15_lost_update", ["C15"], marks=pytest.mark.long),
        pytest.param("orchestrator/faulty/O12_as_they_finish", ["O12"], marks=pytest.mark.long),
        pytest.param("provider/sound/at_random", ["P14", "A16"], marks=pytest.mark.long),
    ],
)
def test_the_same_seed_gives_the_same_report(name, only, tmp_path):
    module = corpus_module(name)
    file = module.path(tmp_path)
    first, second = (
        to_dict(check(file, module_type=module.type, seed=3, only=only)) for _ in range(2)
    )
    assert first.pop("seconds") > 0
    assert second.pop("seconds") > 0
    assert first == second
    assert bool([each for each in first["clauses"] if each["findings"]]) is ("/faulty/" in name)


FAULTY_SLOW_TOOL = SOUND_TOOL.replace(
    'text = input.get("text")',
    'text = input.get("text")\n            import anyio; await anyio.sleep(7)',
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
