"""What every test gets without asking: both backends, virtual time by marker, Hypothesis profiles, the leak guard,
known process state, the seed of the run.

Each line below is a plugin of its own, so that `tests/architecture/test_setup.py` can put the same ones over tests
with planted faults.
"""

from __future__ import annotations

pytest_plugins = [
    "tests._support.backends",
    "tests._support.collected_garbage",
    "tests._support.forked",
    "tests._support.leaks",
    "tests._support.left_out",
    "tests._support.profiles",
    "tests._support.surroundings",
]
