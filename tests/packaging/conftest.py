"""Distributions are built where the builder is installed: in the environment for development, once for all Pythons."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("build") else ["test_distributions.py", "test_public_types.py"]
