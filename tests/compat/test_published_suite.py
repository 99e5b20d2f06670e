"""A suite in the style of published modules' own, through the alias; `differential/test_suite.py` runs it on the published kernel."""

from __future__ import annotations

import sys

import pytest

from .suite_runs import LEAST, run_suite, without_pydantic


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_suite_passes_through_alias():
    left_out = without_pydantic()
    passed, output = run_suite(sys.executable, "-p", "amplifier.compat.pytest", without=left_out)
    assert passed >= (LEAST - 250 if left_out else LEAST), output
