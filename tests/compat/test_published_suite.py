"""A suite in the style of published modules' own, through the alias; `differential/test_suite.py` runs it on the published kernel."""

from __future__ import annotations

import sys

import pytest

from .suite_runs import LEAST, SUITE, run_suite, without_pydantic


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_suite_passes_through_the_alias():
    left_out = without_pydantic()
    passed, output = run_suite(sys.executable, "-p", "amplifier.compat.pytest", without=left_out)
    assert passed >= (LEAST - 300 if left_out else LEAST), output


@pytest.mark.slow
def test_the_option_does_the_same():
    others = tuple(file.name for file in SUITE.glob("check_*.py") if file.name != "check_validation.py")
    passed, output = run_suite(sys.executable, "--amplifier-compat", without=others)
    assert passed >= 40, output
