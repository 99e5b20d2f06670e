"""Choose how many examples of a property are tried, and which points of a sweep.

``HYPOTHESIS_PROFILE`` is ``default``, ``search``, ``large`` or ``thorough``. `make test` and
.ci/run use the first, `make test-all` uses ``large``. ``TEST_SEED`` draws the points.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

# No profile has a deadline: wall time on a busy machine proves nothing about the code.
# The first draws the same examples in every run: a red run is about the change and not about luck.
settings.register_profile(
    "default", max_examples=10, deadline=None, print_blob=True, derandomize=True, database=None
)
settings.register_profile("search", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("large", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Set in the first process of a run, which passes its environment on to the others.
SEED = int(os.environ.setdefault("TEST_SEED", str(random.randrange(2**32))))
"""Seed of the run: for the points of sweeps, and for the profiles that draw new examples each time."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Pass the seed to Hypothesis, unless its own option has another one."""
    if config.option.hypothesis_seed is None and not settings().derandomize:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    """Print the seed, and how to use it again."""
    return f"seed: TEST_SEED={SEED} draws the same points and examples again"
