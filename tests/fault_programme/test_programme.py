"""Every class of the fault programme on both backends: a small part of each, or, with FAULT_SHARE, that share of the whole.

CONTRIBUTING.md has the commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs
import pytest

from tests.fault_programme.catalogue import CLASSES
from tests.fault_programme.launch import outcome_of, run_in_child
from tests.fault_programme.parts import Chunk, FaultClass

SHARE = float(os.environ.get("FAULT_SHARE") or 0)
"""Of the whole programme, up to 1; 0 is the small part."""
MANY = 6
"""Of a class with more chunks, the small part has every third; most come in pairs, one for each backend."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200 if SHARE else 600)]


def chosen_chunks() -> list[object]:
    assert 0 <= SHARE <= 1, f"FAULT_SHARE is {SHARE:g}; expected a number above 0, at most 1"
    chosen = []
    for each in CLASSES.values():
        chunks = each.chunks(SHARE or each.quick_share)
        chosen += [
            (each, chunk) for chunk in chunks[:: 3 if not SHARE and len(chunks) > MANY else 1]
        ]
    return [pytest.param(each, chunk, id=f"{each.name}: {chunk.name}") for each, chunk in chosen]


@pytest.mark.parametrize(("fault_class", "chunk"), chosen_chunks())
def test_programme_holds(
    fault_class: FaultClass, chunk: Chunk, record_property: Callable[[str, object], None]
):
    outcome = outcome_of(fault_class, chunk) if SHARE else run_in_child(fault_class, chunk)
    record_property(
        "outcome", [fault_class.name, attrs.asdict(outcome)]
    )  # for the table of `conftest.py`
    assert outcome.failures == []
    assert outcome.cases > 0 or chunk.name.startswith("without a bug")
