"""The benchmarks count right: a duel, a row, the plot and the page, of known numbers."""

from __future__ import annotations

import gc
import xml.etree.ElementTree
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import page
from benchmarks.board import Board
from benchmarks.duel import Sample, Side, fight
from benchmarks.plot import bars


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


def test_row_has_both_sides_and_ratio():
    board = Board(group="hooks")
    board.score("emit", fight(taking(0.010), taking(0.002), rounds=5))
    board.figures("memory", 20, 8, "KiB")
    assert [(row.theirs, row.ours, row.value) for row in board.rows] == [
        ("10.0 ms", "2.00 ms", pytest.approx(5.0)),
        ("20.0 KiB", "8.00 KiB", 2.5),
    ]
    assert "5.00x" in board.rows[0].line()


RESULTS: dict[str, Any] = {
    "about": {"date": "2026-01-01", "quick": False, "python": "3.11", "machine": "a machine", "versions": {"anyio": "4"}},
    "rows": [
        {
            "work": "emit & more", "rival": "amplifier-core 2.0.2", "group": "hooks", "value": 42.0, "low": 40.0, "high": 45.0,
            "ours": "1 µs", "theirs": "42 µs", "note": "",
        },
        {
            "work": "read", "rival": "pydantic 2", "group": "memory", "value": 0.5, "low": 0.5, "high": 0.5,
            "ours": "2 µs", "theirs": "1 µs", "note": "so it is",
        },
    ],
}  # fmt: skip


def test_page_shows_every_row():
    text = page.results_section(RESULTS)
    assert "| emit & more | 42 µs | 1 µs | 42.0× | 40.0 … 45.0 |" in text
    assert "| read (pydantic 2) | 1 µs | 2 µs | 0.50× |  |" in text
    assert "So it is." in text


def test_the_plot_draws_a_bar_on_either_side_of_one():
    svg = bars([("fast & small", 10.0, 9.0, 11.0), ("slow", 0.5, 0.4, 0.6)], title="t")
    xml.etree.ElementTree.fromstring(svg)
    assert svg.count('class="bar"') == svg.count('class="bar slower"') == 1
