"""The alias for the time of one test, and nothing of it afterwards, published modules included."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from amplifier import compat


@pytest.fixture
def alias() -> Iterator[None]:
    """``amplifier_core`` is this kernel while the test runs; the modules that it imports are forgotten."""
    assert "amplifier_core" not in sys.modules
    compat.install()
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.startswith("amplifier_module_")]:
        del sys.modules[name]
