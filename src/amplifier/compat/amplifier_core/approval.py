"""The approval system, under its published address."""

from amplifier.contracts import ApprovalSystem
from amplifier.errors import ApprovalTimeoutError

__all__ = ["ApprovalSystem", "ApprovalTimeoutError"]
