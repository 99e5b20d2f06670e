"""Asyncio islands run modules that need asyncio in a session on trio.

Such a session has one thread with one asyncio event loop, in which the code of these modules runs.
"""

from ._adapters import on_island
from ._portal import Island

__all__ = ["Island", "on_island"]
