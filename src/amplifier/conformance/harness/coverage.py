"""What one step got to see of the module: a check that ran without anything to look at has shown nothing."""

from __future__ import annotations

import attrs

DECLINED = "mount declined (it returned None and mounted nothing); give the configuration it needs"
"""The note about a module that is not there, so that only its mount could be examined."""


class Unexamined(Exception):
    """Raised by a static check that cannot decide; the text states why."""


@attrs.define(kw_only=True)
class StepCoverage:
    """What one step got to see.

    Attributes:
        backends: Where the module was examined.
        mount_attempted: Whether the step mounted the module, or tried to.
        instance_seen: Whether at least once something of the module was mounted or registered.
        succeeded: Whether at least one call of the module did what it is for.
        cut_short: Why the step did not do all that it was to do, if so.
    """

    backends: list[str] = attrs.field(factory=list)
    mount_attempted: bool = False
    instance_seen: bool = False
    succeeded: bool = False
    cut_short: str | None = None
