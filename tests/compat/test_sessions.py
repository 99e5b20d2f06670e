"""The published session class: opened and closed by hand, in the published words, without what leaks there."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.compat import _adapting
from amplifier.compat._sessions import AmplifierSession, ModuleCoordinator

pytestmark = pytest.mark.usefixtures("alias")

PLAN = {
    "session": {"orchestrator": "loop", "context": "context"},
    "providers": [{"module": "provider-p"}],
}


class Context:
    """Keeps messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def add_message(self, message: Any) -> None:
        self.messages.append(message)


class Loop:
    """An orchestrator that does what a test specifies."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    async def execute(self, **given: Any) -> Any:
        return await self.act(**given)


class Loader:
    """Mounts a loop, a context and a provider."""

    def __init__(self, act: Callable[..., Any], broken: str | None = None) -> None:
        self.act, self.broken = act, broken
        self.cleaned: list[str] = []

    async def load(
        self, module_id: str, config: Any = None, source_hint: Any = None, coordinator: Any = None
    ) -> Any:
        async def mount(coordinator: Any) -> Any:
            if module_id == self.broken:
                raise ValueError("planned")
            things = {"loop": ("orchestrator", Loop(self.act)), "context": ("context", Context())}
            point, thing = things.get(module_id, ("providers", object()))
            await coordinator.mount(point, thing, name=None if module_id in things else "p")
            return lambda: self.cleaned.append(module_id)

        return mount


async def answer(prompt: str, **_: Any) -> str:
    return f"answer to {prompt}"


def session_of(
    act: Callable[..., Any] = answer, broken: str | None = None, **options: Any
) -> AmplifierSession:
    session = AmplifierSession(PLAN, session_id="s", **options)
    session.coordinator.loader = Loader(act, broken)
    return session


def record(session: Any) -> list[str]:
    heard: list[str] = []
    session.coordinator.hooks.register("*", lambda event, data: heard.append(event))
    return heard


async def test_opening_error_is_wrapped_and_cleaned_up():
    session = session_of(broken="context")

    with pytest.raises(RuntimeError, match="Session initialization failed: "):
        async with session:
            raise AssertionError("never reached")

    assert session.coordinator.loader.cleaned == ["loop"]


async def test_concurrent_opening_happens_once():
    session = session_of()
    mounted = record(session)

    async with anyio.create_task_group() as group:
        group.start_soon(session.initialize)
        group.start_soon(session.initialize)
    await session.cleanup()

    assert session.coordinator.loader.cleaned == ["provider-p", "context", "loop"]
    assert mounted == ["session:end"]


async def test_ignored_immediate_stop_cancels_turn(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(_adapting, "IMMEDIATE_GRACE", 0.01)
    unwound: list[str] = []

    async def wait(coordinator: Any, **_: Any) -> str:
        coordinator.cancellation.request_immediate()
        try:
            await anyio.sleep_forever()
        finally:
            unwound.append("yes")
        return ""

    session = session_of(wait)
    heard = record(session)
    async with session:
        assert await session.execute("x") == ""  # as a published loop answers a stop

    assert unwound == ["yes"]
    assert heard[0] == "session:start"
    assert heard[-2:] == ["cancel:completed", "session:end"]


@pytest.mark.virtual_time
async def test_headless_double_ctrl_c_returns_to_program():
    """The published command line asks for a graceful stop at the first SIGINT, for an immediate one at the second, and then saves."""
    waiting = anyio.Event()
    errors: list[str | None] = []

    async def wait(**_: Any) -> str:
        waiting.set()
        await anyio.sleep_forever()
        return ""

    async def press_twice(token: Any) -> None:
        await waiting.wait()
        assert token.request_graceful()
        assert token.request_immediate()

    session = session_of(wait)
    session.coordinator.hooks.register(
        "cancel:completed", lambda event, data: errors.append(data.get("error"))
    )
    async with session, anyio.create_task_group() as group:
        group.start_soon(press_twice, session.coordinator.cancellation)
        assert await session.execute("x") == ""
    assert errors == [None]


async def test_unrequested_cancellation_of_orchestrator_is_error():
    async def invent(**_: Any) -> str:
        raise asyncio.CancelledError("made up")

    async with session_of(invent) as session:
        with pytest.raises(RuntimeError, match="Execution failed: SpuriousCancellation"):
            await session.execute("x")


async def test_cleanups_run_despite_failures_and_cancellation():
    ran: list[str] = []

    async def slow() -> None:
        await anyio.lowlevel.checkpoint()
        ran.append("slow")

    def bad() -> None:
        ran.append("bad")
        raise ValueError("planned")

    session = session_of()
    await session.initialize()
    session.coordinator.register_cleanup(slow)
    session.coordinator.register_cleanup(bad)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await session.cleanup()

    assert ran == ["bad", "slow"]
    assert not session.initialized


async def test_built_in_modules_in_published_session(tmp_path: Path):
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": {"responses": ["built in"]}}],
        "tools": [
            {"module": "tool-todo"},
            {"module": "tool-filesystem", "config": {"allowed_paths": [str(tmp_path)]}},
        ],
        "hooks": [{"module": "hooks-approval"}, {"module": "hooks-redaction"}],
    }
    session = AmplifierSession(plan)
    heard = record(session)

    async with session:
        answer = await session.execute("hello")

    assert answer == "built in"
    assert "module:load_failed" not in heard
    assert (heard[0], heard[-1]) == ("session:start", "session:end")


@pytest.mark.parametrize("name", ["register_capability", "unmount", "to_dict"])
def test_coordinator_methods_have_class_signatures(name):
    """Published suites make mocks with them."""
    coordinator = ModuleCoordinator(None)
    of_the_class = inspect.signature(getattr(ModuleCoordinator, name))
    assert list(of_the_class.parameters)[1:] == list(
        inspect.signature(getattr(coordinator, name)).parameters
    )
