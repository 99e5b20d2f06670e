"""A plot of ratios as SVG, on a scale of powers of ten: a bar from one, and its quartiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, LABELS, RIGHT, TOP, STEP, BAR = 860, 345, 60, 54, 22, 13

# A forge and the manual show it as an image, which knows the reader's preference, too.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.faint { fill: #6e7781 }
.grid { stroke: #d0d7de }
.bar { fill: #2f6f9f }
.slower { fill: #b5541c }
.spread { stroke: #0b2a40; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #8b949e } .grid { stroke: #30363d } .bar { fill: #4d9bd1 }
  .slower { fill: #e08a52 } .spread { stroke: #d6ecfb }
}
"""


def bars(rows: Sequence[tuple[str, float, float, float]], *, title: str) -> str:
    """Draw rows of label, value, lower and upper quartile."""
    least = math.floor(math.log10(min(low for _, _, low, _ in rows)))
    most = math.ceil(math.log10(max(high for *_, high in rows)))
    bottom = TOP + STEP * len(rows)

    def place(value: float) -> float:
        share = (math.log10(value) - least) / (most - least)
        return round(LABELS + share * (WIDTH - LABELS - RIGHT), 1)

    box = f'viewBox="0 0 {WIDTH} {bottom + 34}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="12" y="22">{escape(title)}</text>',
        '<text class="faint" x="12" y="40">median; thin line: quartiles</text>',
    ]
    for power in range(least, most + 1):
        x, label = place(10.0**power), f"{10.0**power:,g}×"
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{bottom}"/>')
        lines.append(
            f'<text class="faint" x="{x}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
        )
    for number, (label, value, low, high) in enumerate(rows):
        middle = TOP + STEP * number + STEP / 2
        left, right = sorted([place(1.0), place(value)])
        kind, width = "bar" if value >= 1 else "bar slower", round(max(right - left, 1), 1)
        x_low, x_high = place(low), place(high)
        ratio = f"{value:,.{0 if value >= 10 else 1 if value >= 1 else 2}f}×"
        lines += [
            f'<text x="{LABELS - 10}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{left}" y="{middle - BAR / 2}" width="{width}" height="{BAR}"/>',
            f'<line class="spread" x1="{x_low}" x2="{x_high}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{max(right, x_high) + 6:.1f}" y="{middle + 4}">{ratio}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
