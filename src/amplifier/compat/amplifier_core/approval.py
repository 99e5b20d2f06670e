"""Asking a person, as published modules import it."""

from amplifier.contracts import ApprovalSystem
from amplifier.errors import ApprovalTimeoutError

__all__ = ["ApprovalSystem", "ApprovalTimeoutError"]
