"""The former place of `amplifier.models.answers`, for versions 0.2 and 0.3."""

import warnings

from amplifier.models.answers import *  # noqa: F403 — every name of the new place
from amplifier.models.answers import __all__  # noqa: F401 — the same names

warnings.warn(
    "amplifier.answers is now amplifier.models.answers; the old name goes with version 0.4",
    DeprecationWarning,
    stacklevel=2,
)
