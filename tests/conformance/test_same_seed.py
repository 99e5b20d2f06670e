"""Same seed, same result: two runs on a module give equal reports."""

from __future__ import annotations

import pytest

from amplifier.models import to_dict
from tests.conformance.corpus_modules import corpus_module
from tests.conformance.modules import check


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
    first, second = (to_dict(check(file, module_type=module.type, seed=3, only=only)) for _ in range(2))
    assert first.pop("seconds") > 0
    assert second.pop("seconds") > 0
    assert first == second
    assert bool([each for each in first["clauses"] if each["findings"]]) is ("/faulty/" in name)
