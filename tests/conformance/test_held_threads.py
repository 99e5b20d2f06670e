"""Worker threads that the kit lets begin late."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import anyio.to_thread

from amplifier.conformance.target.held_threads import hold_threads


async def test_abandoned_thread_runs_after_it_was_let_go() -> None:
    done: list[str] = []

    async def leave() -> None:
        await anyio.to_thread.run_sync(done.append, "late", abandon_on_cancel=True)

    with hold_threads() as held:
        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            while not held.begun:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    await anyio.to_thread.run_sync(done.append, "first")
    await held.let_go()
    assert sorted(done) == ["first", "late"]
    assert held.count == 1


async def test_awaited_thread_gives_its_result() -> None:
    with hold_threads() as held:
        assert await anyio.to_thread.run_sync(len, "four") == 4
    assert held.count == 1
    assert await anyio.to_thread.run_sync(len, "five!") == 5
    assert held.count == 1
