"""How hard Hypothesis tries: ``HYPOTHESIS_PROFILE=quick|dev|ci|thorough``, ``dev`` by default."""

from __future__ import annotations

import os

from hypothesis import settings

# No profile has a deadline: wall time on a busy machine proves nothing about the code.
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
# The same examples on every run, so that a red build is about the change and not about luck.
settings.register_profile("ci", max_examples=50, deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("quick", max_examples=25, deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
