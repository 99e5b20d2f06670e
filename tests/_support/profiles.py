"""How hard Hypothesis tries: ``HYPOTHESIS_PROFILE=default|quick|search|thorough``.

The default and ``quick`` draw the same examples on every run, so that a red run is about the change and not about luck.
``search`` (the other Python of .ci/run) and ``thorough`` (the long suites) draw new ones each time.
"""

from __future__ import annotations

import os

from hypothesis import settings

# No profile has a deadline: wall time on a busy machine proves nothing about the code.
settings.register_profile("default", max_examples=30, deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("quick", max_examples=25, deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("search", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
