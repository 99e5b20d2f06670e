"""``session.budget`` of a plan: what a session and its children may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import attrs

from .._json import format_path
from .._spelling import suggestion
from ._names import show
from ._spec import LONGEST_DEADLINE, BudgetLimits, TokenPrice

_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_AMOUNT: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_MOST: Final = 10**15

AMOUNT_PATTERN: Final = f"^{_AMOUNT.pattern}$"
"""An amount of money as text; the same in the JSON Schema."""

BUDGET_KEYS: Final = tuple(field.name for field in attrs.fields(BudgetLimits))
PRICE_KEYS: Final = tuple(field.name for field in attrs.fields(TokenPrice))

Report = Callable[[str, str], None]
"""Takes a path and what is wrong there."""


def read_budget(given: Mapping[Any, Any], path: str, report: Report) -> BudgetLimits:
    """Read a budget; every problem is reported, and what has one is left at its default."""
    read: dict[str, Any] = {}
    for key, value in given.items():
        where = format_path([key], path)
        if key not in BUDGET_KEYS:
            report(where, f"unknown key; known are {', '.join(BUDGET_KEYS)}{suggestion(key, BUDGET_KEYS)}")
            continue
        wanted = _read(key, value, where, report)
        if wanted is not None or (value is None and key in _OPTIONAL):
            read[key] = wanted
    return BudgetLimits(**read)


_OPTIONAL: Final = frozenset({"tokens", "cost", "model_calls", "tool_calls", "seconds", "warn_at"})


def _read(key: str, value: Any, path: str, report: Report) -> Any:
    """One value in its final form; None if it is wrong or null."""
    if value is None:  # for what is not optional, as good as absent
        return None
    if key in ("tokens", "model_calls", "tool_calls"):
        if type(value) is int and 0 <= value <= _MOST:
            return value
        report(path, f"expected a whole number, 0 or more, or null for no limit; got {show(value)}")
    elif key == "cost":
        return _amount(value, path, "an amount of money, 0 or more, or null for no limit", report)
    elif key == "seconds":
        if type(value) in (int, float) and 0 < value <= LONGEST_DEADLINE:
            return float(value)
        report(path, f"expected seconds, more than 0, or null for no limit; got {show(value)}")
    elif key == "warn_at":
        if type(value) in (int, float) and 0 < value <= 1:
            return float(value)
        report(path, f"expected a share, more than 0 and at most 1, or null for no warnings; got {show(value)}")
    elif key == "currency":
        if type(value) is str and _CURRENCY.fullmatch(value):
            return value
        report(path, f"expected a currency code of three capital letters, such as 'USD'; got {show(value)}")
    elif key == "unknown_price":
        if value in ("refuse", "allow"):
            return value
        near = suggestion(value, ("refuse", "allow"))
        report(path, f"expected 'refuse' or 'allow'; got {show(value)}{near}")
    elif key == "prices":
        return _prices(value, path, report)
    return None


def _amount(value: Any, path: str, expected: str, report: Report) -> Decimal | None:
    """Money as a number or as text; through text, because 0.1 has no exact binary form."""
    if type(value) is int and 0 <= value <= _MOST:
        return Decimal(value)
    if type(value) in (float, Decimal) or (type(value) is str and _AMOUNT.fullmatch(value)):
        amount = Decimal(str(value))
        if amount.is_finite() and 0 <= amount <= _MOST:
            return amount
    report(path, f"expected {expected}, such as 0.5 or '0.50'; got {show(value)}")
    return None


def _prices(given: Any, path: str, report: Report) -> dict[str, TokenPrice] | None:
    shape = f"a mapping of {' and '.join(PRICE_KEYS)}"
    if not isinstance(given, Mapping):
        report(path, f"expected a mapping of model names to prices, each {shape}; got {show(given)}")
        return None
    prices: dict[str, TokenPrice] = {}
    for model, price in given.items():
        where = format_path([model], path)
        if not isinstance(model, str) or not isinstance(price, Mapping):
            report(where, f"expected {shape}; got {show(price)}")
            continue
        for key in price:
            if key not in PRICE_KEYS:
                near = suggestion(key, PRICE_KEYS)
                report(format_path([key], where), f"unknown key; known are {', '.join(PRICE_KEYS)}{near}")
        asked, answered = (
            _amount(price.get(key), format_path([key], where), "an amount of money, 0 or more", report)
            for key in PRICE_KEYS
        )
        if asked is not None and answered is not None:
            prices[model] = TokenPrice(input_per_million=asked, output_per_million=answered)
    return prices
