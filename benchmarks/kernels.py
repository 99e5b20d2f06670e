"""The same programs on both kernels: ours on asyncio and trio, the published one on asyncio.

A `Kernel` gives an event loop that stays, so that starting one is not measured, and the classes by their common names. The
modules of a session are plain in-process objects; both kernels get the same ones as far as their data types allow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import amplifier_core
import anyio
import anyio.from_thread

import amplifier

Work = Callable[[], Awaitable[Any]]

PLAN = {
    "session": {"orchestrator": "loop-bench", "context": "context-bench"},
    "providers": [{"module": "provider-bench"}],
    "tools": [{"module": "tool-bench"}],
    "hooks": [{"module": "hooks-bench"}],
}


class Kernel:
    """One kernel on one backend."""

    def __init__(self, name: str, library: Any, backend: str) -> None:
        self.name, self.package, self.backend = name, library, backend
        self.is_ours = library is amplifier

    def timed(self, prepare: Callable[[], Awaitable[Work]]) -> Callable[[int], float]:
        """A side of a duel: ``prepare`` is awaited once in every run and gives the work."""

        async def main(count: int) -> float:
            work = await prepare()
            await work()
            started = time.perf_counter()
            for _ in range(count):
                await work()
            return time.perf_counter() - started

        def side(count: int) -> float:
            if self.backend == "asyncio":
                return asyncio.run(main(count))
            return anyio.run(main, count, backend=self.backend)

        return side

    def session(self, modules: dict[str, Any], **options: Any) -> Any:
        """A session of the plan above."""
        if self.is_ours:
            return amplifier.AmplifierSession(PLAN, loader=amplifier.ModuleLoader(modules=modules), **options)
        session = amplifier_core.AmplifierSession(PLAN, **options)
        session.coordinator.loader = InProcessLoader(modules)  # the argument of that name is not used
        return session


class InProcessLoader:
    """Gives the published kernel modules of this process, without looking for anything."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._modules = modules

    async def load(self, module_id: str, config: Any = None, source_hint: Any = None, **_: Any) -> Any:
        mount = self._modules[module_id]

        async def mount_with_config(coordinator: Any) -> Any:
            return await mount(coordinator, config or {})

        return mount_with_config

    def get_on_session_ready_queue(self) -> list[Any]:
        """Nobody waits for the session."""
        return []

    def clear_on_session_ready_queue(self) -> None:
        """There is none."""

    def cleanup(self) -> None:
        """Nothing was taken, so nothing is given back."""


THEIRS = Kernel("amplifier-core", amplifier_core, "asyncio")
OURS = Kernel("amplifier on asyncio", amplifier, "asyncio")
OURS_ON_TRIO = Kernel("amplifier on trio", amplifier, "trio")
