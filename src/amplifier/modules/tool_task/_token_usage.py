"""Counts the tokens of child sessions as their models answer, so that a cancelled child is counted, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import attrs

_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@attrs.define
class TokenUsage:
    """A sum over model calls.

    Attributes:
        calls: How many.
        cost: In US dollars; None once the cost of a call was not known.
    """

    calls: int = 0
    tokens: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(_COUNTED, 0))
    cost: Decimal | None = Decimal(0)

    @property
    def total(self) -> int:
        """Tokens in and out."""
        return self.tokens["input_tokens"] + self.tokens["output_tokens"]

    def add(self, usage: Mapping[str, Any], calls: int = 1) -> int:
        """Add the usage of an event; returns by how many tokens `total` grew."""
        before = self.total
        self.calls += calls
        for name in _COUNTED:
            count = usage.get(name)
            if isinstance(count, int) and count > 0:
                self.tokens[name] += count
        cost = _as_cost(usage.get("cost_usd"))
        self.cost = None if self.cost is None or cost is None else self.cost + cost
        return self.total - before

    def shown(self) -> dict[str, Any]:
        """For results and events; a cost only if all of it is known."""
        shown: dict[str, Any] = {"model_calls": self.calls}
        shown |= {name: count for name, count in self.tokens.items() if count or name in _COUNTED[:2]}
        shown["total_tokens"] = self.total
        if self.calls and self.cost is not None:
            shown["cost_usd"] = str(self.cost)
        return shown


def _as_cost(value: Any) -> Decimal | None:
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    return value if isinstance(value, Decimal) and value.is_finite() else None


class Budget:
    """Tokens that all children of a session may consume together, theirs included.

    Args:
        limit: How many; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.consumed: int = 0
        self._alarms: list[Callable[[], object]] = []

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        return self.limit is not None and self.consumed >= self.limit

    def consume(self, tokens: int) -> None:
        """Count tokens, and call the watchers when the budget is used up."""
        was_used_up = self.is_used_up
        self.consumed += tokens
        if self.is_used_up and not was_used_up:
            for alarm in tuple(self._alarms):
                alarm()

    def watch(self, alarm: Callable[[], object]) -> Callable[[], None]:
        """Have something called when the budget is used up; returns how to take that back."""
        self._alarms.append(alarm)
        return lambda: self._alarms.remove(alarm)


class UsageCounter:
    """Counts what one child consumes.

    A model call is reported by the provider (``llm:response``, which some providers do not emit) and by the orchestrator
    (``provider:response``, which does not come when it was cancelled in between). So both are counted for each provider,
    and the larger sum is taken.

    Args:
        budget: Counts every token once.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._reported: dict[tuple[str, str], TokenUsage] = {}
        self._by_children = TokenUsage()

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        """Count a response of the child's model."""
        usage = data.get("usage")
        if not isinstance(usage, Mapping):
            return
        before = self.consumed().total
        self._reported.setdefault((str(data.get("provider")), event), TokenUsage()).add(usage)
        self._budget.consume(self.consumed().total - before)

    def take_child(self, data: Mapping[str, Any]) -> None:
        """Count what a child of the child consumed; the budget knows already."""
        usage = data.get("usage")
        if isinstance(usage, Mapping):
            calls = usage.get("model_calls")
            self._by_children.add(usage, calls if isinstance(calls, int) else 0)

    def consumed(self) -> TokenUsage:
        """Everything so far."""
        result = TokenUsage()
        parts = [self._by_children] if self._by_children.calls else []
        for provider in dict.fromkeys(provider for provider, _ in self._reported):
            reported = [consumed for (name, _), consumed in self._reported.items() if name == provider]
            parts.append(
                max(reported, key=lambda consumed: (consumed.total, consumed.calls, consumed.cost is not None))
            )
        for part in parts:
            cost = None if part.cost is None else str(part.cost)
            result.add({**part.tokens, "cost_usd": cost}, part.calls)
        return result
