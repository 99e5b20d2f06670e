"""Work that runs to its end although its caller is being cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from amplifier.contracts import Coordinator


async def run_shielded(
    coordinator: Coordinator | None, fn: Callable[..., Awaitable[None]], *args: Any, name: str
) -> None:
    """Run ``fn(*args)`` to its end; a cancellation of the caller is delivered afterwards.

    Args:
        coordinator: Runs the work as a section, which nothing cuts off. Without one the work runs in a child task under a
            shield: on asyncio a native cancel then reaches only the caller, but the end of the event loop cancels both.
        fn: The work, which must end in bounded time.
        args: Its arguments.
        name: For reports.
    """
    if coordinator is not None:
        await coordinator.run_section(fn, *args, name=name, shield=True)
        return
    failures: list[BaseException] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await fn(*args)
            except BaseException as error:  # noqa: BLE001 - raised below, where no task group wraps it
                failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failures:
        raise failures.pop()  # popped, so that the error does not hold a frame that holds the error
