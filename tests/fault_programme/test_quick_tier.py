"""A small part of every class of the fault programme, on both backends; `make fault-programme` runs all of it."""

from __future__ import annotations

import pytest

from tests.fault_programme.catalogue import CLASSES
from tests.fault_programme.launch import run_in_child
from tests.fault_programme.parts import Chunk, FaultClass

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


MANY = 6
"""Of a class with more chunks, every third is run; most come in pairs, one for each backend."""


def quick_chunks() -> list[object]:
    chosen = []
    for each in CLASSES.values():
        chunks = each.chunks(each.quick_share)
        chosen += [(each, chunk) for chunk in chunks[:: 3 if len(chunks) > MANY else 1]]
    return [pytest.param(each, chunk, id=f"{each.name}: {chunk.name}") for each, chunk in chosen]


@pytest.mark.parametrize(("fault_class", "chunk"), quick_chunks())
def test_a_small_part_of_the_programme_holds(fault_class: FaultClass, chunk: Chunk):
    outcome = run_in_child(fault_class, chunk)
    assert outcome.failures == []
    assert outcome.cases > 0 or chunk.name.startswith("without a bug")
