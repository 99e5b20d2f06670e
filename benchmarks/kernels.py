"""The same programs on both kernels: ours on asyncio and trio, the published one on asyncio.

A `Kernel` runs a side of a duel in an event loop of its own, starting which is not timed, and gives the classes by their
common names. The modules of a session are plain in-process objects; both kernels get the same ones as far as their data
types allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import amplifier_core
import anyio
import trio

import amplifier
from benchmarks.duel import Sample, Side, timed_await
from benchmarks.scripted_modules import modules_for

Work = Callable[[], Awaitable[Any]]
Prepare = Callable[["Kernel"], Awaitable[Work]]

PLAN = {
    "session": {"orchestrator": "loop-bench", "context": "context-bench"},
    "providers": [{"module": "provider-bench"}],
    "tools": [{"module": "tool-bench"}],
    "hooks": [{"module": "hooks-bench"}],
}


class Kernel:
    """One kernel on one backend."""

    def __init__(self, library: Any, backend: str) -> None:
        self.package, self.backend = library, backend
        self.is_ours = library is amplifier

    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """Run a program in a fresh event loop."""
        if self.backend == "asyncio":
            return asyncio.run(main())  # type: ignore[arg-type]  # a coroutine, whatever its static type
        return anyio.run(main, backend=self.backend)

    def timed(self, prepare: Prepare) -> Side:
        """A side of a duel: ``prepare`` is awaited once in every sample and gives the work."""

        def side(count: int) -> Sample:
            async def main() -> Sample:
                return await timed_await(await prepare(self), count)

            return self.run(main)

        return side

    def modules(self, **options: Any) -> dict[str, Any]:
        """The five modules of the plan, see `scripted_modules`."""
        gather = _gathered_by_anyio if self.is_ours else _gathered_by_asyncio
        pause = trio.lowlevel.checkpoint if self.backend == "trio" else _sleep_zero
        return modules_for(self.package, gather=gather, pause=pause, **options)

    def loader(self, **options: Any) -> Any:
        """A loader that an application makes once, for all its sessions, with those modules in it."""
        modules = self.modules(**options)
        return amplifier.ModuleLoader(modules=modules) if self.is_ours else InProcessLoader(modules)

    def session(self, loader: Any = None, plan: dict[str, Any] = PLAN, **options: Any) -> Any:
        """A session of the plan above; without a loader it looks for installed modules."""
        if self.is_ours:
            return amplifier.AmplifierSession(plan, loader=loader, **options)
        session = amplifier_core.AmplifierSession(plan, **options)
        if loader is not None:
            session.coordinator.loader = loader  # the argument of that name is not used
        return session

    async def opened(self, **options: Any) -> Any:
        """A session that was initialised by hand, as both kernels can; ``options`` are the modules'."""
        session = self.session(self.loader(**options))
        await session.initialize()
        return session


async def _sleep_zero() -> None:
    await asyncio.sleep(0)


async def _gathered_by_asyncio(calls: list[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls)


async def _gathered_by_anyio(calls: list[Awaitable[Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    async def run(index: int, call: Awaitable[Any]) -> None:
        results[index] = await call

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(run, index, call)
    return results


class InProcessLoader:
    """Gives the published kernel modules of this process, without looking for anything."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._modules = modules

    async def load(
        self, module_id: str, config: Any = None, source_hint: Any = None, **_: Any
    ) -> Any:
        mount = self._modules[module_id]

        async def mount_with_config(coordinator: Any) -> Any:
            return await mount(coordinator, config or {})

        return mount_with_config

    def get_on_session_ready_queue(self) -> list[Any]:
        """No caller waits for the session."""
        return []

    def clear_on_session_ready_queue(self) -> None:
        """There is none."""

    def cleanup(self) -> None:
        """Nothing was taken, so nothing is given back."""


THEIRS = Kernel(amplifier_core, "asyncio")
OURS = Kernel(amplifier, "asyncio")
OURS_ON_TRIO = Kernel(amplifier, "trio")
