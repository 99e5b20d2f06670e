"""The suite that passes through the alias passes on the published kernel as well: it asks for nothing else."""

from __future__ import annotations

import pytest

from ..suite_runs import LEAST, run_suite


@pytest.mark.timeout(300)
def test_suite_passes_on_published_kernel(reference_python: str):
    # Its own plugin needs pytest-asyncio, which the suite does not.
    passed, output = run_suite(reference_python, "-p", "no:amplifier_module")
    assert passed >= LEAST, output
