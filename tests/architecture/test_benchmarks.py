"""The benchmarks count right: what a duel, a row, a fit and the page make of known numbers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import page
from benchmarks.board import Row
from benchmarks.duel import Sample, Side, fight
from benchmarks.fit import slope


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """A duel sets aside what is alive, see `duel.tidy`; other tests want it back."""
    yield
    gc.unfreeze()


def taking(seconds: float) -> Side:
    """A side that reports a fixed duration each time."""
    return lambda count: Sample(cpu=seconds * count, wall=2 * seconds * count)


def test_ratio_is_theirs_by_ours():
    bout = fight(taking(0.010), taking(0.002), rounds=5)
    assert bout.ratios == pytest.approx([5.0] * 5)
    assert bout.wall_ratio == pytest.approx(5.0)
    assert (bout.their_us, bout.our_us) == pytest.approx((10_000, 2_000))


@pytest.mark.parametrize(
    ("value", "target", "sense", "met"),
    [
        (10.0, 10.0, "at least", True),
        (9.9, 10.0, "at least", False),
        (10.0, 10.0, "at most", True),
        (10.1, 10.0, "at most", False),
        (0.0, None, "at least", True),
    ],
)
def test_target_is_met_from_its_side(value: float, target: float | None, sense: Any, met: bool):
    row = Row(work="w", rival="", value=value, low=value, high=value, target=target, sense=sense)
    assert row.is_met is met
    assert ("MISSED" in row.line()) is not met


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_fit_finds_power(power):
    assert slope({size: 3e-6 * size**power for size in (100, 1000, 10_000)}) == pytest.approx(power)


RESULTS: dict[str, Any] = {
    "about": {"date": "2026-01-01", "quick": False, "python": "3.11", "machine": "a machine", "versions": {"anyio": "4"}},
    "rows": [
        {
            "work": "emit & more", "rival": "amplifier-core 2.0.2", "group": "hooks", "value": 42.0, "low": 40.0, "high": 45.0,
            "unit": "x", "target": 30, "sense": "at least", "ours": "1 µs", "theirs": "42 µs", "note": "", "met": True,
        },
        {
            "work": "memory", "rival": "", "group": "memory", "value": 9.0, "low": 9.0, "high": 9.0,
            "unit": "KiB", "target": 7, "sense": "at most", "ours": "9 KiB", "theirs": "", "note": "so it is", "met": False,
        },
    ],
}  # fmt: skip


def test_page_shows_rows_and_marks_misses():
    text = page.results_section(RESULTS)
    assert "| emit & more | 42 µs | 1 µs | 42.0× | 40.0 … 45.0 | ≥ 30× |" in text
    assert "| memory |  | 9 KiB | **9 KiB** |  | ≤ 7 KiB |" in text
    assert "Of 2 targets 1 was missed; its median is bold.\n" in text
    assert "So it is." in text
