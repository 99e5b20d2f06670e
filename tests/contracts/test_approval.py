"""The approval contracts: their shapes."""

from __future__ import annotations

import inspect
from typing import Literal

from amplifier.contracts import ApprovalProvider, ApprovalSystem
from amplifier.models import ApprovalRequest, ApprovalResponse


class Porter:
    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        return ApprovalResponse(approved=False)


class Desk:
    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: Literal["allow", "deny"]
    ) -> str:
        return options[0]


def test_both_shapes_of_approval_are_recognised() -> None:
    provider: ApprovalProvider = Porter()
    system: ApprovalSystem = Desk()
    assert isinstance(provider, ApprovalProvider)
    assert isinstance(system, ApprovalSystem)


def test_what_cannot_be_asked_is_neither() -> None:
    assert not isinstance(object(), ApprovalProvider | ApprovalSystem)


def test_the_system_is_asked_as_published_systems_expect() -> None:
    assert inspect.iscoroutinefunction(ApprovalSystem.request_approval)
    assert list(inspect.signature(ApprovalSystem.request_approval).parameters) == [
        "self",
        "prompt",
        "options",
        "timeout",
        "default",
    ]
