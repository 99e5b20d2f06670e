"""Budgets: limits for tokens, cost, calls and time that hold over a session and all its children.

The kernel makes a `Budget` for a session whose plan has ``session.budget``, and for every session below it. Whatever is mounted as
a provider or a tool of such a session is mounted inside a meter, so that every call is counted, whoever makes it.
"""

from ._meter import SessionMeter
from .budget import Budget, BudgetUse

__all__ = ["Budget", "BudgetUse", "SessionMeter"]
