"""The manual is built where Sphinx is installed: in the environment for development, not in those of the other Pythons."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("sphinx") else ["test_site.py"]
