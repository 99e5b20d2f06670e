"""The two loops on which everything is tested that holds for the turn that all share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", params=["loop-streaming", "loop-events"])
def loop(request: pytest.FixtureRequest) -> str:
    """One streams, the other lets hooks select tools; loop-basic does neither."""
    name: str = request.param
    return name
