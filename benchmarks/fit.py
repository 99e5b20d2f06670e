"""How cost grows with size."""

from __future__ import annotations

import math
from collections.abc import Mapping


def slope(times: Mapping[int, float]) -> float:
    """Of the least-squares line through (log size, log time): one is linear, two a square."""
    points = [(math.log(size), math.log(seconds)) for size, seconds in times.items()]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )
