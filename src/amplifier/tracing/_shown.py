"""Numbers as people read them, the same in text and on pages."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["count", "dollars", "duration", "number"]


def duration(seconds: float | None) -> str:
    """Such as 350 ms, 2.50 s or 3 min 20 s; empty if it is not known."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: int) -> str:
    """With separated thousands."""
    return f"{value:,}"


def count(value: int, one: str, many: str | None = None) -> str:
    """A number and what is counted."""
    return f"{number(value)} {one if value == 1 else many or f'{one}s'}"


def dollars(cost: Decimal | None) -> str:
    """Such as $0.0123; empty if it is not known."""
    if cost is None:
        return ""
    digits = 2 if cost == 0 or abs(cost) >= 1 else 4 if abs(cost) >= Decimal("0.001") else 6
    return f"${cost:,.{digits}f}"
