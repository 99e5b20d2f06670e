"""Same seed, same result: two runs on a module give equal reports."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.models import to_dict

CORPUS = Path(__file__).parent / "corpus"


def examined(file: Path, seed: int, only: list[str]) -> Report:
    async def run() -> Report:
        return await check_module(file, module_type=file.parent.parent.name, seed=seed, only=only)

    return anyio.run(run)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("tool/faulty/T10_current_input_on_self.py", ["T10"]),
        pytest.param("context/faulty/C15_lost_update.py", ["C15"], marks=pytest.mark.long),
        pytest.param("orchestrator/faulty/O12_as_they_finish.py", ["O12"], marks=pytest.mark.long),
        pytest.param("provider/sound/at_random.py", ["P14", "A16"], marks=pytest.mark.long),
    ],
)
def test_the_same_seed_gives_the_same_report(module, only):
    first, second = (to_dict(examined(CORPUS / module, 3, only)) for _ in range(2))
    assert first.pop("seconds") > 0
    assert second.pop("seconds") > 0
    assert first == second
    assert bool([each for each in first["clauses"] if each["findings"]]) is ("/faulty/" in module)
