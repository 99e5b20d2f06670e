"""What the kernel's tests share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def log() -> list[Any]:
    """What happened, in order."""
    return []
