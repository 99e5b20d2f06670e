"""A plot of ratios as SVG, on a scale of powers of ten: a bar, its quartiles, and a mark where the target is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, LABELS, RIGHT, TOP, STEP, BAR = 860, 330, 60, 54, 22, 13

# Read in a page of either kind; a forge and the manual show it as an image, which knows the reader's preference, too.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.faint { fill: #6e7781 }
.grid { stroke: #d0d7de }
.bar { fill: #2f6f9f }
.missed { fill: #b5541c }
.spread { stroke: #0b2a40; stroke-width: 1.5 }
.target { stroke: #24292f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #8b949e } .grid { stroke: #30363d } .bar { fill: #4d9bd1 }
  .missed { fill: #e08a52 } .spread { stroke: #d6ecfb } .target { stroke: #e6edf3 }
}
"""


def bars(rows: Sequence[tuple[str, float, float, float, float]], *, title: str) -> str:
    """Draw rows of label, value, lower and upper quartile, and target."""
    most = max([10.0, *(max(value, high, target) for _, value, _, high, target in rows)])
    decades = math.ceil(math.log10(most))
    height = TOP + STEP * len(rows) + 34
    box = f'viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="12" y="22">{escape(title)}</text>',
        '<text class="faint" x="12" y="40">median; thin line: quartiles; upright mark: target</text>',
    ]
    for power in range(decades + 1):
        x = _place(10**power, decades)
        bottom = TOP + STEP * len(rows)
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{bottom}"/>')
        lines.append(
            f'<text class="faint" x="{x}" y="{bottom + 18}" text-anchor="middle">{10**power:,}×</text>'
        )
    for number, row in enumerate(rows):
        lines += _row(row, TOP + STEP * number, decades)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(row: tuple[str, float, float, float, float], y: int, decades: int) -> list[str]:
    label, value, low, high, target = row
    middle, left, right = y + STEP / 2, _place(1, decades), _place(value, decades)
    kind = "bar" if value >= target else "bar missed"
    x_low, x_high, x_target = (_place(number, decades) for number in (low, high, target))
    return [
        f'<text x="{LABELS - 10}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>',
        f'<rect class="{kind}" x="{left}" y="{middle - BAR / 2}" width="{max(right - left, 1):.1f}" height="{BAR}"/>',
        f'<line class="spread" x1="{x_low}" x2="{x_high}" y1="{middle}" y2="{middle}"/>',
        f'<line class="target" x1="{x_target}" x2="{x_target}" y1="{middle - 9}" y2="{middle + 9}"/>',
        f'<text x="{max(right, x_target, x_high) + 6:.1f}" y="{middle + 4}">{value:,.{0 if value >= 10 else 1}f}×</text>',
    ]


def _place(value: float, decades: int) -> float:
    """Where a ratio is on the scale; what is below one stays at its left end."""
    share = math.log10(max(value, 1.0)) / decades
    return round(LABELS + share * (WIDTH - LABELS - RIGHT), 1)
