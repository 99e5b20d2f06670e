"""Asyncio islands: modules that need asyncio, in a session on trio.

A session on trio that mounts such a module gets one thread with one asyncio event loop, its island. The module's code runs there;
what crosses between the two loops is wrapped. Imported only when the first such module is mounted on trio.

- `_island`: the thread and its loop, from the first mount to the end of the session.
- `_calls`: one call across: who waits, who is cancelled, what is raised.
- `_residents`: what needs one task for several calls: async generators and context managers.
- `_border`: which values are wrapped on their way across, and how.
- `_protocol`: what these use of an island.
- `_mounting`: a mount function whose module lives on the island.
"""

from ._island import Island
from ._mounting import mount_on_island, ready_on_island

__all__ = ["Island", "mount_on_island", "ready_on_island"]
