"""Asyncio islands: modules that need asyncio, in a session on trio.

A session on trio that mounts such a module gets one thread with one asyncio event loop, its island. The module's code runs there.
Imported only when the first such module is mounted on trio.

- `_portal`: the thread and its loop, and one call between it and trio.
- `_adapters`: the objects of each contract, as the other side uses them; mount functions.
"""

from ._adapters import on_island
from ._portal import Island

__all__ = ["Island", "on_island"]
