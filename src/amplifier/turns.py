"""The former place of `amplifier.models.turns`, for versions 0.2 and 0.3."""

import warnings

from amplifier.models.turns import *  # noqa: F403 — every name of the new place
from amplifier.models.turns import __all__  # noqa: F401 — the same names

warnings.warn(
    "amplifier.turns is now amplifier.models.turns; the old name goes with version 0.4",
    DeprecationWarning,
    stacklevel=2,
)
