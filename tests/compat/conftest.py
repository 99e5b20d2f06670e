"""The alias for the time of one test, and nothing of it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from amplifier import compat


@pytest.fixture
def alias() -> Iterator[None]:
    """``amplifier_core`` is this kernel while the test runs."""
    assert "amplifier_core" not in sys.modules
    compat.install()
    yield
    compat.uninstall()
