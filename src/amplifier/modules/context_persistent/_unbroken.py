"""Steps that are taken to their end although the caller is being cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def unbroken(fn: Callable[[], Awaitable[None]]) -> None:
    """Run ``fn()`` to its end whatever happens to the caller; a cancellation is delivered afterwards.

    In a task of its own under a shield: on asyncio a native cancel goes through a shield, but it reaches only the
    caller, who waits for the task group.
    """
    failed: list[Exception] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await fn()
            except Exception as error:  # noqa: BLE001 — carried over to the caller as it is, not in a group
                failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failed:
        # pop(), so that the error does not hold a frame that holds the error
        raise failed.pop()
