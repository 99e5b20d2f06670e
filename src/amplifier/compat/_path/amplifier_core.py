"""What a Python process finds under this name that a program with the alias has started: it installs the alias there, too.

The directory is on such a process's path; see `amplifier.compat._children`. Importing this file puts the mirror in its place.
"""

import sys

del sys.modules[__name__]

from amplifier.compat import install  # noqa: E402 — the name must be free before

install()
