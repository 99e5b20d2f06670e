"""Budgets: limits for tokens, cost, calls and time over a session and all its children.

The kernel creates a `Budget` for a session whose plan has ``session.budget``, and for all its
children. It wraps their providers and tools in meters, which count every call.
"""

from ._meter import SessionMeter
from .budget import Budget, BudgetUse

__all__ = ["Budget", "BudgetUse", "SessionMeter"]
