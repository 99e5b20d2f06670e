"""``amplifier_core`` in a process whose path has this directory: importing it installs the alias, which replaces this file.

See `amplifier.compat._alias`.
"""

import sys

del sys.modules[__name__]

try:
    from amplifier.compat import install
except ImportError as error:
    raise ImportError(
        f"amplifier_core is an alias of the package amplifier here ({__file__}), which {sys.executable} cannot import: {error}. "
        "Processes that are given a PYTHONPATH of their own may lose one of both; install amplifier into the environment and run "
        "`python -m amplifier.compat enable` there, which needs no PYTHONPATH (`disable` takes the alias back)",
        name="amplifier_core",
    ) from error

install()
