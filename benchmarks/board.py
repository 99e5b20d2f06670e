"""The board: rows of ours, the other's and the ratio, printed at the end and written as JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen

from benchmarks.duel import Bout, Side, fight

PUBLISHED = "amplifier-core 2.0.2"
RESULTS = Path(os.environ.get("BENCH_RESULTS", "benchmarks/results/latest.json"))


@frozen(kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        work: What was done.
        rival: The library it is compared with.
        group: The file that made it.
        value: The median of how many times less ours takes.
        low: The lower quartile, the same as the value if there is no spread.
        high: The upper quartile.
        ours: Our own figure, as text.
        theirs: The other one's.
        note: A short remark for readers.
        by_clock: The ratio of the times by the clock, beside that of processor time.
    """

    work: str
    rival: str
    group: str = ""
    value: float
    low: float
    high: float
    ours: str
    theirs: str
    note: str = ""
    by_clock: float | None = None

    def line(self) -> str:
        spread = f"{shown(self.low)}..{shown(self.high)}" if self.low != self.high else ""
        who = f" ({self.rival})" if self.rival != PUBLISHED else ""
        ratio = f"{shown(self.value)}x"
        return f"{self.work + who:<66}{self.theirs:>12}{self.ours:>12}{ratio:>12}  {spread}"


HEADING = f"{'':<66}{'theirs':>12}{'ours':>12}{'ratio':>12}  quartiles"


@define
class Board:
    """Rows in the order they were made; ``group`` is the file that is at work."""

    rows: list[Row] = field(factory=list)
    group: str = ""

    def add(self, row: Row) -> Row:
        self.rows.append(attrs.evolve(row, group=self.group))
        return row

    def duel(
        self, work: str, theirs: Side, ours: Side, *, rival: str = PUBLISHED, **options: Any
    ) -> Row:
        """Time both sides."""
        return self.score(work, fight(theirs, ours, **options), rival=rival)

    def score(self, work: str, bout: Bout, *, rival: str = PUBLISHED, **more: Any) -> Row:
        """Add the row of a duel that was fought."""
        figures = {"ours": micro(bout.our_us), "theirs": micro(bout.their_us)}
        return self.spread(
            work, bout.ratios, rival=rival, by_clock=bout.wall_ratio, **figures | more
        )

    def spread(
        self, work: str, ratios: Sequence[float], *, rival: str = PUBLISHED, **more: Any
    ) -> Row:
        """Add a row of many ratios: their median and quartiles."""
        low, middle, high = (
            statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        )
        row = Row(
            work=work, rival=rival, group=self.group, value=middle, low=low, high=high, **more
        )
        self.rows.append(row)
        return row

    def figures(self, work: str, theirs: float, ours: float, unit: str, *, note: str = "") -> Row:
        """Add a row of one figure each, beside the published kernel."""
        texts = {"theirs": f"{shown(theirs)} {unit}", "ours": f"{shown(ours)} {unit}"}
        return self.spread(work, [theirs / ours], note=note, **texts)

    def write(self, about: dict[str, Any], path: Path = RESULTS, *, is_whole: bool = False) -> None:
        """Write the rows to a JSON file.

        Args:
            about: The circumstances.
            path: The file.
            is_whole: Forget what was there; otherwise only rows of the same work and rival are replaced.
        """
        known = [] if is_whole else read(path).get("rows", [])
        fresh = {(row.work, row.rival): attrs.asdict(row) for row in self.rows}
        kept = {(row["work"], row["rival"]): row for row in known}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"about": about, "rows": list((kept | fresh).values())}, indent=1, ensure_ascii=False
        )
        path.write_text(text + "\n", encoding="utf-8")


def read(path: Path = RESULTS) -> dict[str, Any]:
    """What earlier runs wrote; nothing if that cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and "rows" in content else {}


def shown(value: float) -> str:
    """A figure with about three digits."""
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )


def micro(microseconds: float) -> str:
    """A time people can read."""
    if microseconds >= 1e6:
        return f"{shown(microseconds / 1e6)} s"
    return f"{shown(microseconds / 1e3)} ms" if microseconds >= 1e3 else f"{shown(microseconds)} µs"
