"""Turns on Temporal: workers on any number of machines, with a Temporal server between them; needs the extra ``temporal``.

A turn is a workflow, and its model calls and tool calls are activities of it. The session itself lives on the worker that has the turn,
inside one more activity, on asyncio or trio. `_workflows` has what is recorded, `_hosting` the worker, `_client` what applications ask.
"""

from ._sdk import sdk_runtime as _sdk_runtime  # noqa: F401 — first, see there
from ._temporal_engine import open_temporal_engine

__all__ = ["open_temporal_engine"]
