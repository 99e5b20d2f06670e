"""The session, with the doubles and patches that suites use."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from unittest.mock import AsyncMock, Mock, patch

import amplifier_core
import pytest
from amplifier_core import AmplifierSession, ChatResponse, HookResult, ModuleCoordinator, TextBlock


def plan(**session):
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", **session},
        "providers": [],
        "tools": [],
        "hooks": [],
    }


class Loader:
    """Mounts a loop that answers what it is told to, and a context."""

    def __init__(self, answer="ok", broken=None):
        self.broken = broken
        self.loop = AsyncMock()
        raises = isinstance(answer, BaseException)
        self.loop.execute = (
            AsyncMock(side_effect=answer) if raises else AsyncMock(return_value=answer)
        )

    async def load(self, module_id, config=None, source_hint=None, coordinator=None):
        if module_id == self.broken:
            raise KeyError("gone")

        async def mount(coordinator):
            context = Mock(add_message=AsyncMock(), get_messages=AsyncMock(return_value=[]))
            if module_id.startswith("loop"):
                await coordinator.mount("orchestrator", self.loop)
            elif module_id.startswith("context"):
                await coordinator.mount("context", context)

        return mount

    def get_on_session_ready_queue(self):
        return []

    def clear_on_session_ready_queue(self):
        pass


async def opened(config=None, answer="ok", **options):
    session = AmplifierSession(config or plan(), **options)
    session.coordinator.loader = Loader(answer)
    await session.initialize()
    return session


def capture(session, *events):
    seen = []

    async def handler(event, data):
        seen.append((event, dict(data)))
        return HookResult(action="continue")

    for event in events:
        session.coordinator.hooks.register(event, handler, name=f"capture-{event}")
    return seen


def run(main):
    return asyncio.run(main())


# ── construction ─────────────────────────────────────────────────────────────────────────────────


def test_ids_and_parts():
    given = plan()
    session = AmplifierSession(given)
    uuid.UUID(session.session_id)
    assert session.parent_id is None
    assert session.config is given
    assert session.coordinator.config is given
    assert session.coordinator.session_id == session.session_id
    assert isinstance(session.coordinator, ModuleCoordinator)
    assert (session.initialized, session.is_resumed) == (False, False)
    session.config["new"] = 1
    assert given["new"] == 1
    other = AmplifierSession(plan(), session_id="mine", parent_id="parent", is_resumed=True)
    assert (other.session_id, other.parent_id, other.coordinator.parent_id) == (
        "mine",
        "parent",
        "parent",
    )
    assert other.coordinator.session.session_id == "mine"
    assert AmplifierSession(plan()).session_id != session.session_id


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "Configuration is required"),
        ({"a": 1}, "must specify session.orchestrator"),
        ({"session": {}}, "must specify session.orchestrator"),
        ({"session": {"context": "c"}}, "must specify session.orchestrator"),
        ({"session": {"orchestrator": "o"}}, "must specify session.context"),
    ],
)
def test_incomplete_plans(config, words):
    with pytest.raises(ValueError, match=words):
        AmplifierSession(config)


def test_invalid_plans():
    with pytest.raises(TypeError):
        AmplifierSession(None)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def test_opening_happens_once():
    async def main():
        session = await opened()
        loop = session.coordinator.get("orchestrator")
        await session.initialize()
        return (
            session.initialized,
            session.coordinator.session is session,
            session.coordinator.get("orchestrator") is loop,
        )

    assert run(main) == (True, True, True)


@pytest.mark.parametrize("broken", ["loop-basic", "context-simple"])
def test_failed_opening_is_runtime_error(broken):
    async def main():
        session = AmplifierSession(plan())
        session.coordinator.loader = Loader(broken=broken)
        with pytest.raises(RuntimeError, match="Session initialization failed"):
            await session.initialize()
        return session.initialized

    assert run(main) is False


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def test_turn():
    async def main():
        session = await opened(answer="Hello!")
        loop = session.coordinator.loader.loop
        seen = capture(session, "session:start", "session:end")
        answers = [await session.execute("hi"), await session.execute("again")]
        await session.cleanup()
        given = loop.execute.call_args_list[0].kwargs
        assert given["prompt"] == "hi"
        assert set(given) == {"prompt", "context", "providers", "tools", "hooks", "coordinator"}
        return (
            answers,
            [event for event, _ in seen],
            seen[0][1]["session_id"] == session.session_id,
            session.initialized,
        )

    assert run(main) == (["Hello!", "Hello!"], ["session:start", "session:end"], True, False)


def test_turn_before_opening_is_refused():
    async def main():
        with pytest.raises(RuntimeError, match="not initialized"):
            await AmplifierSession(plan()).execute("x")

    run(main)


@pytest.mark.parametrize("error", [ValueError("bad"), amplifier_core.RateLimitError("slow")])
def test_error_of_turn(error):
    async def main():
        session = await opened(answer=error)
        with pytest.raises(
            RuntimeError, match=f"Execution failed: {type(error).__name__}: {error}"
        ):
            await session.execute("x")

    run(main)


def test_mock_provider_in_real_session():
    class Provider:
        name = "mock"

        def __init__(self):
            self.complete = AsyncMock(return_value=ChatResponse(content=[TextBlock(text="hi")]))

        def parse_tool_calls(self, response):
            return []

    class Loop:
        async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
            response = await providers["mock"].complete(prompt)
            return response.content[0].text

    async def main():
        session = await opened()
        session.coordinator.mount_points["orchestrator"] = Loop()
        session.coordinator.mount_points["providers"] = {"mock": Provider()}
        return await session.execute("x")

    assert run(main) == "hi"


# ── closing ──────────────────────────────────────────────────────────────────────────────────────


def test_closing_unopened_session():
    async def main():
        session = AmplifierSession(plan())
        ran = []
        session.coordinator.hooks.register(
            "session:end", lambda e, d: ran.append("end"), name="end"
        )
        session.coordinator.register_cleanup(lambda: ran.append("cleanup"))
        await session.__aexit__(None, None, None)
        return ran

    assert run(main) == ["cleanup"]


# ── patches ──────────────────────────────────────────────────────────────────────────────────────


def test_top_level_class_can_be_patched():
    with patch("amplifier_core.AmplifierSession") as double:
        from amplifier_core import AmplifierSession as Patched

        assert Patched is double
    from amplifier_core import AmplifierSession as Again

    assert Again is AmplifierSession


@pytest.mark.parametrize(
    "target",
    [
        "models.HookResult",
        "message_models.ChatRequest",
        "message_models.Message",
        "message_models.TextBlock",
    ],
)
def test_models_can_be_patched_at_import_source(target):
    module, _, name = target.rpartition(".")
    with patch(f"amplifier_core.{target}") as double:
        assert getattr(importlib.import_module(f"amplifier_core.{module}"), name) is double
