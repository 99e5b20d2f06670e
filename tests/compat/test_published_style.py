"""A session made of published-style modules only, from end to end, through the alias."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from .published_modules import write_modules

NATIVE = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For tests of asyncio's own ``Task.cancel``, which trio does not have."""


class Source:
    """The path of a module that a resolver found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        return self.path


class Resolver:
    """Finds the modules of this test."""

    def __init__(self, places: dict[str, Path]) -> None:
        self.places = places

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Source:
        return Source(self.places[module_id])


Open = Callable[..., Any]


@pytest.fixture
def opened(alias: None, tmp_path: Path) -> Iterator[Open]:
    """Build a session over the small modules; they are forgotten afterwards."""
    places = write_modules(tmp_path)

    def build(
        script: list[Any], *, session_class: Any = None, hooks: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        import amplifier_core  # type: ignore[import-not-found]

        plan = {
            "session": {
                # The harder case for a session: the loop itself waits while it cleans up. No published one does.
                "orchestrator": {"module": "loop-small-small", "config": {"waits": True}},
                "context": {"module": "context-list-small"},
            },
            "providers": [{"module": "provider-small-small", "config": {"script": script}}],
            "tools": [{"module": "tool-shell-small"}],
            "hooks": [{"module": "hooks-small-small", "config": hooks or {}}],
        }
        session = (session_class or amplifier_core.AmplifierSession)(plan, **options)
        mounting = session.coordinator.mount("module-source-resolver", Resolver(places))
        assert mounting is not None
        session.coordinator.register_capability("test.log", [])
        return session

    before = list(sys.path)
    yield build
    assert sys.path == before, "the session left entries in sys.path"
    for name in [name for name in sys.modules if name.startswith("amplifier_module_") and "small" in name]:
        del sys.modules[name]


def events_of(session: Any) -> list[str]:
    return [event for event, _ in session.coordinator.get_capability("test.log")]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def messages_of(session: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await session.coordinator.get("context").get_messages()
    return found


@NATIVE
@pytest.mark.parametrize("slow", [False, True], ids=["handlers at once", "handlers that wait"])
async def test_a_cancelled_caller_leaves_only_after_the_loop_has_cleaned_up(opened: Open, slow: bool):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": slow})

    async with session:
        started = asyncio.Event()
        session.coordinator.register_capability("test.started", started.set)
        turn = asyncio.create_task(session.execute("go"))
        await started.wait()
        turn.cancel()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        messages = await messages_of(session)
        pids = session.coordinator.todo_state

    names = events_of(session)
    assert messages[-1]["content"] == "Stopped."
    assert names[-4:] == ["cancel:completed", "orchestrator:complete", "cancel:completed", "session:end"]
    assert not any(is_running(pid) for pid in pids)


@NATIVE
@pytest.mark.parametrize("first", ["the caller", "the token"])
async def test_a_second_cancellation_waits_until_the_loop_has_cleaned_up(opened: Open, first: str):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": True})

    async with session:
        started = asyncio.Event()
        session.coordinator.register_capability("test.started", started.set)
        turn = asyncio.create_task(session.execute("go"))
        session.coordinator.hooks.register("cancel:requested", lambda event, data: turn.cancel())
        await started.wait()
        if first == "the caller":
            turn.cancel()
        else:
            await session.coordinator.request_cancel(immediate=True)
        with pytest.raises(asyncio.CancelledError):
            await turn
        messages = await messages_of(session)

    assert messages[-1]["content"] == "Stopped."


async def test_a_cancelled_scope_around_the_turn_reaches_the_loop_once(opened: Open):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": True})

    async with session:
        with anyio.CancelScope() as scope:
            session.coordinator.register_capability("test.started", scope.cancel)
            await session.execute("go")
        messages = await messages_of(session)

    names = events_of(session)
    assert scope.cancelled_caught
    assert messages[-1]["content"] == "Stopped."
    assert names.count("cancel:completed") == 2  # the loop's, and the kernel's own
