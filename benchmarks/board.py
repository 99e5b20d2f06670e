"""The board: every row of the result table, met or missed, printed at the end and written as JSON.

A row is a ratio (ours against another library) or a figure (kibibytes, milliseconds, a slope). Targets are those of the project;
a missed target is a row that says so: a run that has measured everything succeeds.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

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
        rival: The library it is compared with; empty if there is none.
        group: The file that made it.
        value: The median.
        low: The lower quartile, the same as the value if there is no spread.
        high: The upper quartile.
        unit: ``"x"`` for ratios.
        target: The limit, if there is one.
        sense: On which side of the target the value should be.
        ours: Our own figure behind it, as text.
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
    unit: str = "x"
    target: float | None = None
    sense: Literal["at least", "at most"] = "at least"
    ours: str = ""
    theirs: str = ""
    note: str = ""
    by_clock: float | None = None

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.sense == "at least" else self.value <= self.target

    def line(self) -> str:
        wanted = (
            ""
            if self.target is None
            else f"{self.sense} {self.target:g}" + ("" if self.is_met else "  MISSED")
        )
        spread = f"{shown(self.low)}..{shown(self.high)}" if self.low != self.high else ""
        who = f" ({self.rival})" if self.rival and self.rival != PUBLISHED else ""
        figure = f"{shown(self.value)} {self.unit}".replace(" x", "x")
        return f"{self.work + who:<66}{self.theirs:>12}{self.ours:>12}{figure:>12}  {spread:<14}{wanted}"


HEADING = f"{'':<66}{'theirs':>12}{'ours':>12}{'median':>12}  quartiles"


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
        """Time both sides; the row has how many times faster ours is."""
        return self.score(work, fight(theirs, ours), rival=rival, **options)

    def score(
        self,
        work: str,
        bout: Bout,
        *,
        rival: str = PUBLISHED,
        target: float | None = None,
        **more: Any,
    ) -> Row:
        """The row of a duel that was fought."""
        more.setdefault("ours", micro(bout.our_us))
        more.setdefault("theirs", micro(bout.their_us))
        more["by_clock"] = bout.wall_ratio
        return self.spread(work, bout.ratios, rival=rival, target=target, **more)

    def multiple(
        self,
        work: str,
        base: Side,
        ours: Side,
        *,
        rival: str,
        at_most: float | None,
        **options: Any,
    ) -> Row:
        """The row with the cost of ours as a multiple of the base."""
        bout = fight(base, ours, **options)
        costs = [1 / ratio for ratio in bout.ratios]
        figures = {"ours": micro(bout.our_us), "theirs": micro(bout.their_us)}
        return self.spread(work, costs, rival=rival, target=at_most, sense="at most", **figures)

    def spread(self, work: str, values: Sequence[float], *, rival: str = "", **more: Any) -> Row:
        """A row of many values: their median and quartiles."""
        low, middle, high = (
            statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        )
        return self.add(Row(work=work, rival=rival, value=middle, low=low, high=high, **more))

    def figure(self, work: str, value: float, unit: str, **more: Any) -> Row:
        """A row of one value."""
        return self.add(
            Row(
                work=work,
                rival=more.pop("rival", ""),
                value=value,
                low=value,
                high=value,
                unit=unit,
                **more,
            )
        )

    def write(self, about: dict[str, Any], path: Path = RESULTS, *, is_whole: bool = False) -> None:
        """Write the rows to a JSON file.

        Args:
            about: The circumstances.
            path: The file.
            is_whole: Forget what was there; otherwise only rows of the same work and rival are replaced.
        """
        known = [] if is_whole else read(path).get("rows", [])
        fresh = {
            (row.work, row.rival): attrs.asdict(row) | {"met": row.is_met} for row in self.rows
        }
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
