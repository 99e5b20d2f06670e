"""Both session classes, with the doubles and patches that suites use."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from unittest.mock import AsyncMock, MagicMock, Mock, patch

import amplifier_core
import pytest
from amplifier_core import AmplifierSession, ChatResponse, HookResult, ModuleCoordinator, ModuleLoader, TextBlock
from amplifier_core._session_exec import emit_raw_field_if_configured, run_orchestrator
from amplifier_core.session import AmplifierSession as PySession

BOTH = pytest.mark.parametrize("kind", [AmplifierSession, PySession], ids=["native", "python"])


def plan(**session):
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", **session},
        "providers": [],
        "tools": [],
        "hooks": [],
    }


def furnish(session, answer="ok"):
    loop = AsyncMock()
    loop.execute = (
        AsyncMock(return_value=answer) if not isinstance(answer, BaseException) else AsyncMock(side_effect=answer)
    )
    session.coordinator.mount_points["orchestrator"] = loop
    session.coordinator.mount_points["context"] = Mock(add_message=AsyncMock(), get_messages=AsyncMock(return_value=[]))
    session.coordinator.mount_points["providers"] = {"mock": AsyncMock()}
    return loop


async def opened(config=None, **options):
    session = AmplifierSession(config or plan(), **options)
    with patch("amplifier_core._session_init.initialize_session", AsyncMock()):
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


@BOTH
def test_ids_and_parts(kind):
    given = plan()
    session = kind(given)
    uuid.UUID(session.session_id)
    assert session.parent_id is None
    assert session.config is given
    assert session.coordinator.config is given
    assert session.coordinator.session_id == session.session_id
    assert isinstance(session.coordinator, ModuleCoordinator)
    session.config["new"] = 1
    assert given["new"] == 1
    other = kind(plan(), session_id="mine", parent_id="parent", is_resumed=True)
    assert (other.session_id, other.parent_id, other.coordinator.parent_id) == ("mine", "parent", "parent")
    assert kind(plan()).session_id != session.session_id


@BOTH
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
def test_plans_that_lack_something(kind, config, words):
    with pytest.raises(ValueError, match=words):
        kind(config)


def test_the_native_class_is_closed():
    session = AmplifierSession(plan())
    assert (session.initialized, session.is_resumed) == (False, False)
    for name in ("status", "loader", "fork"):
        assert not hasattr(session, name)
    with pytest.raises(AttributeError):
        session.anything = 1
    with pytest.raises(AttributeError):
        session.session_id = "x"
    with pytest.raises(TypeError):
        AmplifierSession(None)
    with pytest.raises(TypeError):
        AmplifierSession(plan(), session_id=5)


def test_the_python_class_is_open():
    loader = ModuleLoader()
    session = PySession(plan(), loader=loader)
    assert session.loader is loader
    assert session.status.status == "running"
    assert session.status.session_id == session.session_id
    assert session._initialized is False
    assert session.coordinator.session is session
    assert isinstance(PySession(plan()).loader, ModuleLoader)
    assert session._merge_configs({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}, "d": 1}
    session.anything = 1


def test_the_coordinator_knows_the_session_once_it_is_open():
    async def main():
        session = await opened()
        return session.coordinator.session is session

    assert run(main)
    assert AmplifierSession(plan(), session_id="x").coordinator.session.session_id == "x"


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def test_opening_calls_the_helper_once():
    async def main():
        session = AmplifierSession(plan(), session_id="i", parent_id="p")
        with patch("amplifier_core._session_init.initialize_session", AsyncMock()) as helper:
            await session.initialize()
            await session.initialize()
        helper.assert_called_once()
        assert helper.call_args.args[0] == session.config
        assert helper.call_args.args[2:] == ("i", "p")
        return session.initialized

    assert run(main) is True


def test_the_python_class_calls_its_own_name_of_the_helper():
    async def main():
        session = PySession(plan())
        with patch("amplifier_core.session.initialize_session", new_callable=AsyncMock) as helper:
            await session.initialize()
            await session.initialize()
        helper.assert_called_once_with(session.config, session.coordinator, session.session_id, session.parent_id)
        broken = PySession(plan())
        with (
            patch("amplifier_core.session.initialize_session", AsyncMock(side_effect=RuntimeError("init failed"))),
            pytest.raises(RuntimeError, match="init failed"),
        ):
            await broken.initialize()
        return session._initialized, broken._initialized

    assert run(main) == (True, False)


def test_a_failure_to_open_is_a_runtime_error():
    async def main():
        session = AmplifierSession(plan())
        with (
            patch("amplifier_core._session_init.initialize_session", AsyncMock(side_effect=KeyError("gone"))),
            pytest.raises(RuntimeError, match="Session initialization failed: KeyError: 'gone'"),
        ):
            await session.initialize()
        return session.initialized

    assert run(main) is False


@BOTH
def test_the_methods_are_there(kind):
    session = kind(plan())
    for name in ("initialize", "execute", "cleanup", "__aenter__", "__aexit__"):
        assert callable(getattr(session, name))


def test_async_with_on_the_python_class_uses_what_is_assigned():
    async def main():
        session = PySession(plan())
        session.initialize, session.cleanup = AsyncMock(), AsyncMock()
        async with session as entered:
            assert entered is session
            session.initialize.assert_called_once()
        session.cleanup.assert_called_once()

    run(main)


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn():
    async def main():
        session = await opened()
        loop = furnish(session, "Hello!")
        seen = capture(session, "session:start", "session:end")
        answers = [await session.execute("hi"), await session.execute("again")]
        await session.cleanup()
        given = loop.execute.call_args_list[0].kwargs
        assert given["prompt"] == "hi"
        assert set(given) == {"prompt", "context", "providers", "tools", "hooks", "coordinator"}
        assert given["hooks"] is session.coordinator.hooks
        return (
            answers,
            [event for event, _ in seen],
            seen[0][1]["session_id"] == session.session_id,
            session.initialized,
        )

    assert run(main) == (["Hello!", "Hello!"], ["session:start", "session:end"], True, False)


def test_a_turn_before_opening_is_refused():
    async def main():
        with pytest.raises(RuntimeError, match="not initialized"):
            await AmplifierSession(plan()).execute("x")
        session = await opened()
        with pytest.raises(TypeError):
            await session.execute(5)

    run(main)


@pytest.mark.parametrize("error", [ValueError("bad"), amplifier_core.RateLimitError("slow")])
def test_an_error_of_a_turn(error):
    async def main():
        session = await opened()
        furnish(session, error)
        with pytest.raises(RuntimeError, match=f"Execution failed: {type(error).__name__}: {error}"):
            await session.execute("x")
        furnish(session, 5)
        with pytest.raises(TypeError):
            await session.execute("x")
        session.coordinator.mount_points["orchestrator"] = None
        with pytest.raises(RuntimeError, match="Execution failed: AttributeError"):
            await session.execute("x")

    run(main)


@pytest.mark.parametrize("immediate", [False, True])
def test_a_cancelled_turn_is_announced(immediate):
    async def main():
        session = await opened()
        furnish(session)
        seen = capture(session, "cancel:completed")
        await session.coordinator.request_cancel(immediate=immediate)
        await session.execute("x")
        return [data["was_immediate"] for _, data in seen]

    assert run(main) == [immediate]


@pytest.mark.parametrize(
    ("metadata", "shown"), [({"agent": "x", "deep": {"n": None}}, True), ({}, False), (None, False)]
)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_metadata_of_the_plan(metadata, shown, is_resumed):
    async def main():
        config = plan(**({} if metadata is None else {"metadata": metadata}))
        session = await opened(config, is_resumed=is_resumed, session_id="s", parent_id="p")
        furnish(session)
        seen = capture(session, "session:start", "session:resume")
        await session.execute("x")
        assert len(seen) == 1
        event, data = seen[0]
        assert event == ("session:resume" if is_resumed else "session:start")
        assert (data["session_id"], data["parent_id"]) == ("s", "p")
        assert ("metadata" in data) is shown
        if shown:
            assert data["metadata"] == metadata

    run(main)


def test_a_plan_that_shows_itself():
    async def main():
        config = plan(raw=True)
        config["providers"] = [{"module": "p", "config": {"api_key": "secret", "model": "m"}}]
        session = await opened(config)
        furnish(session)
        seen = capture(session, "session:start", "session:config")
        await session.execute("x")
        await session.execute("y")
        return seen

    seen = run(main)
    assert [event for event, _ in seen] == ["session:start", "session:config", "session:config"]
    shown = seen[1][1]["raw"]["providers"][0]["config"]
    assert shown == {"api_key": "[REDACTED]", "model": "m"}
    assert "raw" not in seen[0][1]


# ── turns of the python class ────────────────────────────────────────────────────────────────────


def test_the_python_class_needs_its_modules():
    async def main():
        session = PySession(plan())
        session._initialized = True
        session.coordinator.mount_points["orchestrator"] = None
        with pytest.raises(RuntimeError, match="No orchestrator module mounted"):
            await session.execute("x")
        furnish(session)
        session.coordinator.mount_points["context"] = None
        with pytest.raises(RuntimeError, match="No context manager mounted"):
            await session.execute("x")
        furnish(session)
        session.coordinator.mount_points["providers"] = {}
        with pytest.raises(RuntimeError, match="No providers mounted"):
            await session.execute("x")

    run(main)


def test_the_python_class_keeps_a_status():
    async def main():
        session = PySession(plan())
        session._initialized = True
        furnish(session, 5)
        seen = capture(session, "session:end")
        number = await session.execute("x")
        first = session.status.status
        furnish(session, ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            await session.execute("x")
        await session.cleanup()
        return number, first, session.status.status, session.status.last_error, seen[0][1]["status"]

    assert run(main) == (5, "completed", "failed", {"message": "bad"}, "failed")


@pytest.mark.parametrize("raw", [True, False, None])
def test_the_python_class_shows_the_plan_inside_the_start(raw):
    async def main():
        session = PySession(plan(**({} if raw is None else {"raw": raw})))
        session._initialized = True
        furnish(session)
        seen = capture(session, "session:start")
        await session.execute("x")
        return ["raw" in data for _, data in seen]

    assert run(main) == [raw is True]


def test_the_python_class_always_cleans_the_loader():
    async def main():
        session = PySession(plan())
        session.loader.cleanup = MagicMock()
        with (
            patch.object(type(session.coordinator), "cleanup", AsyncMock(side_effect=asyncio.CancelledError())),
            pytest.raises(asyncio.CancelledError),
        ):
            await session.cleanup()
        session.loader.cleanup.assert_called_once()

    run(main)


# ── closing ──────────────────────────────────────────────────────────────────────────────────────


def test_closing_in_order():
    async def main():
        session = await opened()
        order = []

        async def end(event, data):
            await asyncio.sleep(0)
            order.append(event)

        remove = session.coordinator.hooks.register("session:end", end, name="end")
        session.coordinator.register_cleanup(lambda: (order.append("close"), remove()))
        session.coordinator.register_cleanup(AsyncMock(side_effect=RuntimeError("broken")))
        session.coordinator.register_cleanup(lambda: order.append("first"))
        await session.cleanup()
        await session.cleanup()
        return order

    assert run(main) == ["session:end", "first", "close", "first", "close"]


def test_closing_what_was_never_opened():
    async def main():
        session = AmplifierSession(plan())
        ran = []
        session.coordinator.hooks.register("session:end", lambda e, d: ran.append("end"), name="end")
        session.coordinator.register_cleanup(lambda: ran.append("cleanup"))
        await session.__aexit__(None, None, None)
        return ran

    assert run(main) == ["cleanup"]


def test_two_callers_close_once():
    async def main():
        session = await opened()
        entered, release, order = asyncio.Event(), asyncio.Event(), []

        async def end(event, data):
            order.append("in")
            entered.set()
            await release.wait()
            order.append("out")

        session.coordinator.hooks.register("session:end", end, name="end")
        session.coordinator.register_cleanup(lambda: order.append("close"))
        first = asyncio.create_task(session.cleanup())
        await asyncio.wait_for(entered.wait(), 60)
        second = asyncio.create_task(session.cleanup())
        done, _ = await asyncio.wait({second}, timeout=0.05)
        assert not done
        release.set()
        await asyncio.gather(first, second)
        return order

    order = run(main)
    assert order.count("in") == 1
    assert order.index("out") < order.index("close")


def test_a_failing_end_handler_keeps_nothing_open():
    async def main():
        session = await opened()
        ran = []
        session.coordinator.hooks.register("session:end", AsyncMock(side_effect=RuntimeError("x")), name="end")
        session.coordinator.register_cleanup(lambda: ran.append("close"))
        await session.cleanup()
        return ran, session.initialized

    assert run(main) == (["close"], False)


def test_the_end_is_announced_once_per_opening():
    async def main():
        session = AmplifierSession(plan())
        seen = capture(session, "session:end")
        for _ in range(2):
            with patch("amplifier_core._session_init.initialize_session", AsyncMock()):
                await session.initialize()
            await session.cleanup()
            await session.cleanup()
        return len(seen)

    assert run(main) == 2


def test_a_cancelled_end_is_not_announced_again():
    async def main():
        session = await opened()
        entered, left, calls = asyncio.Event(), asyncio.Event(), []

        async def blocking(event, data):
            calls.append("in")
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        session.coordinator.hooks.register("session:end", blocking, priority=0, name="blocking")
        session.coordinator.hooks.register(
            "session:end", AsyncMock(side_effect=lambda e, d: calls.append("later")), 10, "later"
        )
        session.coordinator.register_cleanup(lambda: calls.append("close"))
        first = asyncio.create_task(session.cleanup())
        await asyncio.wait_for(entered.wait(), 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        between = list(calls)
        await session.cleanup()
        await asyncio.wait_for(left.wait(), 60)
        return between, calls, session.initialized

    assert run(main) == (["in"], ["in", "close"], False)


# ── the helper for turns ─────────────────────────────────────────────────────────────────────────


class Little:
    def __init__(self, **points):
        self.points = points
        self.hooks = Mock()

    def get(self, point):
        return self.points.get(point)


def test_the_orchestrator_is_called_with_keywords():
    async def main():
        loop = Mock(execute=AsyncMock(return_value="r"))
        context, tools = Mock(), {"t": Mock()}
        little = Little(orchestrator=loop, context=context, tools=tools)
        answer = await run_orchestrator(little, "p")
        loop.execute.assert_called_once_with(
            prompt="p", context=context, providers={}, tools=tools, hooks=little.hooks, coordinator=little
        )
        return answer

    assert run(main) == "r"
    assert inspect.iscoroutinefunction(run_orchestrator)


def test_the_plan_is_shown_only_when_asked_for():
    async def main():
        hooks = Mock(emit=AsyncMock())
        little = Little()
        little.hooks = hooks
        await emit_raw_field_if_configured(little, plan(), "s", "session:start")
        hooks.emit.assert_not_awaited()
        await emit_raw_field_if_configured(little, {"session": {"raw": True, "token": "t"}}, "s", "session:start")
        return hooks.emit.await_args.args

    event, data = run(main)
    assert event == "session:config"
    assert data == {"session_id": "s", "raw": {"session": {"raw": True, "token": "[REDACTED]"}}}


def test_the_top_level_class_can_be_patched():
    with patch("amplifier_core.AmplifierSession") as double:
        from amplifier_core import AmplifierSession as Patched

        assert Patched is double
    from amplifier_core import AmplifierSession as Again

    assert Again is AmplifierSession


@pytest.mark.parametrize(
    "target", ["models.HookResult", "message_models.ChatRequest", "message_models.Message", "message_models.TextBlock"]
)
def test_models_can_be_patched_where_they_are_imported_from(target):
    module, _, name = target.rpartition(".")
    with patch(f"amplifier_core.{target}") as double:
        import importlib

        assert getattr(importlib.import_module(f"amplifier_core.{module}"), name) is double


def test_a_mock_provider_in_a_real_session():
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
        furnish(session)
        session.coordinator.mount_points["orchestrator"] = Loop()
        session.coordinator.mount_points["providers"] = {"mock": Provider()}
        return await session.execute("x")

    assert run(main) == "hi"
