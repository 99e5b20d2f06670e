"""What pytest loads in every environment this package is installed in; therefore it does next to nothing by itself.

The conformance suites of `amplifier.conformance` are addressed through the marker and the option declared here. The
file imports pytest and nothing else at the top, so that suites which have nothing to do with agents do not pay for it.
It sits at the outside edge of the package: nothing imports it.
"""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option that names the module under test."""
    parser.addini(
        "amplifier_module",
        help="import name of the Amplifier module this suite tests, for example amplifier_module_tool_search",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that ties a test to clauses of a module contract."""
    config.addinivalue_line(
        "markers", "amplifier_clause(*ids): the clauses of a module contract that this test checks, for example TOOL-3"
    )
