"""The former place of `amplifier.events.payloads`, for versions 0.2 and 0.3."""

import warnings

from amplifier.events.payloads import *  # noqa: F403 — every name of the new place
from amplifier.events.payloads import __all__  # noqa: F401 — the same names

warnings.warn(
    "amplifier.event_payloads is now amplifier.events.payloads; the old name goes with version 0.4",
    DeprecationWarning,
    stacklevel=2,
)
