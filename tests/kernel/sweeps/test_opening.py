"""Opening, cancelled at every suspension: whatever was mounted by then is closed again, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.errors import ModuleLoadError
from tests._support.world_modules import (
    a_moment,
    failing,
    hooks_on_everything,
    hosted,
    ready,
    seed,
    tool,
)
from tests._support.worlds import World, sweep, swept
from tests.loading._forge import forget_imports, root


@swept(points=20)
async def test_structured_modules_leave_in_own_tasks(world: World) -> None:
    session = world.agent(
        tools={"tool-a": hosted(world, "a"), "tool-b": hosted(world, "b")},
        hooks={"hooks-a": hosted(world, "hooks")},
    )
    async with world.opened(session):
        await a_moment()


@swept(points=10)
async def test_just_entered_structured_module_is_left(
    world: World,
) -> None:
    """The cancellation of the opening comes too late for it: what it opened is closed as in any other session."""

    quick = anyio.lowlevel.checkpoint
    session = world.agent(
        tools={
            "tool-a": hosted(world, "a", entering=quick),
            "tool-b": hosted(world, "b", entering=quick, leaving=anyio.sleep_forever),
        }
    )
    async with world.opened(session):
        await world.execute(session)


def test_module_forms_close_in_one_order() -> None:
    async def scenario(world: World) -> None:
        session = world.agent(
            providers={"provider-a": hosted(world, "one"), "provider-b": seed(world, "two")},
            tools={"tool-a": hosted(world, "three"), "tool-b": seed(world, "four")},
        )
        async with world.opened(session):
            pass

    def order(world: World) -> list[str]:
        names = [key.rpartition("/")[2] for key in world.ledger.closed if "pulse" not in key]
        mounted = ["loop", "context", "one", "two", "three", "four"]
        # A module that was cancelled while it was entering has closed itself before the unwinding began.
        return (
            [f"closed in the order {names}"]
            if names != sorted(names, key=mounted.index, reverse=True)
            else []
        )

    sweep(scenario, points=20, also=order)


@swept(points=20)
async def test_failed_mount_removes_registrations(world: World) -> None:
    session = world.agent(
        tools={
            "tool-bad": failing(world, "bad", ValueError("no")),
            "tool-good": tool(world, "good"),
        },
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    async with world.opened(session):
        assert [failure.module_id for failure in session.failures] == ["tool-bad"]
        assert list(session.coordinator.get("tools")) == ["good"]
        assert session.coordinator.get_capability("bad.offer") is None


@swept(points=14)
async def test_failed_structured_mount_is_gone_first(world: World) -> None:
    async def fail() -> None:
        await a_moment()
        raise ValueError("no")

    session = world.agent(
        tools={"tool-bad": hosted(world, "bad", entering=fail), "tool-good": tool(world, "good")}
    )
    async with world.opened(session):
        assert f"{session.session_id}/bad" in world.ledger.closed


async def unwind_slowly(coordinator: Any) -> None:
    """Wait for ever, and take a moment to stop waiting."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await a_moment()


@swept(points=14)
async def test_slow_mount_is_undone_at_deadline(world: World) -> None:
    async def entering() -> None:
        await unwind_slowly(None)

    session = world.agent(
        tools={
            "tool-seed": seed(world, "slow", after=unwind_slowly),
            "tool-hosted": hosted(world, "slower", entering=entering),
            "tool-good": tool(world, "good"),
        },
        settings={"deadlines": {"mount": 5}},
    )
    async with world.opened(session):
        assert [failure.module_id for failure in session.failures] == ["tool-seed", "tool-hosted"]


# A native cancel goes through the module's own shield, and the module is the one to blame.
@swept(points=8, modes=("trio", "asyncio-scope"))
async def test_late_mount_is_still_closed(world: World) -> None:
    """A module may shield the acquiring of what it opens; what it gives back late must not be lost."""

    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        with anyio.CancelScope(shield=True):
            world.ledger.open("late")
            await anyio.sleep(10)

        async def close() -> None:
            await a_moment()
            world.ledger.close("late")

        return close

    session = world.agent(tools={"tool-late": mount}, settings={"deadlines": {"mount": 5}})
    async with world.opened(session):
        assert [failure.module_id for failure in session.failures] == ["tool-late"]
        assert world.ledger.closed == ["late"]


@swept(points=14)
async def test_strict_session_with_failures_stays_closed(world: World) -> None:
    async def refuse() -> None:
        await a_moment()
        raise ValueError("two")

    session = world.agent(
        providers={"provider-good": seed(world, "good")},
        tools={
            "tool-bad": failing(world, "bad", ValueError("one")),
            "tool-worse": hosted(world, "worse", entering=refuse),
        },
        settings={"strict": True},
    )
    with pytest.raises(ExceptionGroup) as caught:
        async with world.opened(session):
            pass
    assert [type(error) for error in caught.value.exceptions] == [ModuleLoadError, ModuleLoadError]


@swept(points=6)
async def test_failing_context_is_fatal(world: World) -> None:
    """The orchestrator is closed."""
    session = world.agent(context=failing(world, "context", ValueError("no")))
    with pytest.raises(ModuleLoadError):
        async with world.opened(session):
            pass


@swept(points=25)
async def test_ready_callback_failing_or_hanging(world: World) -> None:
    async def fail(coordinator: Any) -> None:
        await a_moment()
        raise ValueError("not ready")

    session = world.agent(
        tools={
            "tool-fails": ready(tool(world, "fails"), fail),
            "tool-hangs": ready(tool(world, "hangs"), unwind_slowly),
            "tool-good": ready(tool(world, "good"), lambda coordinator: a_moment()),
        },
        hooks={"hooks-all": hooks_on_everything(world)},
        settings={"deadlines": {"ready": 5}},
    )
    async with world.opened(session):
        assert [failure.phase for failure in session.failures] == ["ready", "ready"]


@swept(points=10)
async def test_manual_session_closes_in_finally(world: World) -> None:
    session = world.agent(tools={"tool-a": tool(world, "a")})
    await session.initialize()
    world.has_opened(session)
    try:
        await world.execute(session)
    finally:
        await session.cleanup()


@swept(points=10)
async def test_concurrent_manual_opening_happens_once(world: World) -> None:
    session = world.agent(tools={"tool-a": tool(world, "a")})
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(session.initialize)
            group.start_soon(session.initialize)
        world.has_opened(session)
    finally:
        # Cancelled between the opening and the end of the group, the session is open and has not been counted yet.
        if session.initialized and not world.was_opened(session):
            world.has_opened(session)
        await session.cleanup()


@pytest.fixture
def disk_module(tmp_path: Path) -> Iterator[Path]:
    root(tmp_path, "tool-disk")
    yield tmp_path
    forget_imports(tmp_path)


def test_loader_paths_are_released(disk_module: Path) -> None:
    async def scenario(world: World) -> None:
        session = world.agent(
            tools={"tool-disk": None, "tool-good": tool(world, "good")}, search_paths=[disk_module]
        )
        async with world.opened(session):
            assert session.failures == []

    sweep(scenario, points=8)


def test_resumed_session_emits_resume_once() -> None:
    async def scenario(world: World) -> None:
        session = world.agent(hooks={"hooks-all": hooks_on_everything(world)}, is_resumed=True)
        async with world.opened(session):
            await world.execute(session)
            await world.execute(session)

    def once(world: World) -> list[str]:
        emitted = [
            event for _, event, _ in world.heard if event in ("session:start", "session:resume")
        ]
        return [f"emitted {emitted}"] if emitted not in ([], ["session:resume"]) else []

    sweep(scenario, points=25, also=once)
