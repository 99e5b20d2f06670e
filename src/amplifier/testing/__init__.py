"""Test tools of product quality, for this project and for authors of modules.

    cancel_everywhere    cancel a scenario at every one of its suspension points, on trio and asyncio
    cancel_at            cancel one call at one suspension, inside a running loop

Virtual time has a door of its own, `amplifier.testing.virtual_time`. Importing this package imports neither pytest nor
Hypothesis nor trio.
"""

from amplifier.testing._cancel_at import CancelledAt, cancel_at
from amplifier.testing._sweep import MODES, World, cancel_everywhere
from amplifier.testing._sweep_report import SweepReport, Violation

__all__ = ["MODES", "CancelledAt", "SweepReport", "Violation", "World", "cancel_at", "cancel_everywhere"]
