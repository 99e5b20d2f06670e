"""Turns on Temporal: workers on any number of machines, with a Temporal server between them; needs the extra ``temporal``.

A turn is a workflow, and its model calls and tool calls are activities of it. The session itself lives on the worker that has the turn,
inside one more activity, on asyncio or trio. `_workflows` has what is recorded, `_hosting` the worker, `_client` what applications ask.
"""

from amplifier.errors import MissingExtraError

try:
    from ._engine import open_temporal_engine
except ModuleNotFoundError as _error:
    if _error.name is None or not _error.name.startswith("temporalio"):
        raise
    raise MissingExtraError("amplifier.durable.temporal", extra="temporal", missing=_error.name) from _error

__all__ = ["open_temporal_engine"]
