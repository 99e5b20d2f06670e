"""Install the alias, which replaces this file, in a process with this directory on its path."""

import sys

del sys.modules[__name__]

try:
    from amplifier.compat import install
except ImportError as error:
    raise ImportError(
        f"amplifier_core is an alias of the package amplifier here ({__file__}), which "
        f"{sys.executable} cannot import: {error}. A process with its own PYTHONPATH may have only "
        "one of both; install amplifier into the environment and run `python -m amplifier.compat "
        "enable` there, which needs no PYTHONPATH (`disable` removes the alias)",
        name="amplifier_core",
    ) from error

install()
