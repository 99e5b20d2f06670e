"""The former place of `amplifier.shared_sessions`, for versions 0.2 and 0.3."""

import warnings

from amplifier.shared_sessions import *  # noqa: F403 — every name of the new place
from amplifier.shared_sessions import __all__  # noqa: F401 — the same names

warnings.warn(
    "amplifier.live is now amplifier.shared_sessions; the old name goes with version 0.4",
    DeprecationWarning,
    stacklevel=2,
)
