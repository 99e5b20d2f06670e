"""Loading and mounting a plan, with the doubles that suites use for loaders and coordinators."""

from __future__ import annotations

import asyncio
import copy
from unittest.mock import AsyncMock, MagicMock

import pytest
from amplifier_core import AmplifierSession, ModuleLoader
from amplifier_core._session_init import _emit_module_load_failed, initialize_session
from amplifier_core.events import MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED, SESSION_FORK
from amplifier_core.testing import MockCoordinator


def plan():
    session = {"orchestrator": "loop-basic", "context": "context-simple"}
    return {"session": session, "providers": [], "tools": [], "hooks": []}


def run(main):
    return asyncio.run(main())


def doubles(failing=(), queue=(), calls=None):
    async def load(module_id, config=None, source_hint=None, coordinator=None):
        if calls is not None:
            calls.append((module_id, config, source_hint))
        if module_id in failing:
            raise RuntimeError(f"{module_id} is broken")
        return AsyncMock(return_value=None)

    loader = MagicMock()
    loader.load = AsyncMock(side_effect=load)
    loader.get_on_session_ready_queue = MagicMock(return_value=list(queue))
    loader._on_session_ready_queue = []
    coordinator = MagicMock()
    coordinator.loader = loader
    coordinator.register_cleanup = MagicMock()
    coordinator.get = MagicMock(return_value={})
    coordinator.get_capability = MagicMock(return_value=None)
    coordinator.hooks = MagicMock()
    coordinator.hooks.emit = AsyncMock()
    return loader, coordinator


@pytest.mark.parametrize(("section", "kind"), [("tools", "tool"), ("hooks", "hook"), ("providers", "provider")])
def test_optional_modules_may_fail(section, kind):
    async def main():
        calls = []
        _, coordinator = doubles(failing={"broken"}, calls=calls)
        config = {**plan(), section: [{"module": "broken"}, {"module": "fine"}, {"config": {}}]}
        await initialize_session(config, coordinator, session_id="s", parent_id=None)
        events = [call.args for call in coordinator.hooks.emit.await_args_list]
        return [c[0] for c in calls], events

    called, events = run(main)
    assert called == ["loop-basic", "context-simple", "broken", "fine"]
    failures = [data for event, data in events if event == MODULE_LOAD_FAILED]
    assert failures[0]["module_id"] == "broken"
    assert failures[0]["module_type"] == kind
    assert "broken is broken" in failures[0]["error"]
    assert failures[0]["reason_code"] == "unknown"


@pytest.mark.parametrize(
    ("name", "words"), [("loop-basic", "without orchestrator"), ("context-simple", "without context")]
)
def test_required_modules_may_not(name, words):
    async def main():
        _, coordinator = doubles(failing={name})
        await initialize_session(plan(), coordinator, "s", None)

    with pytest.raises(RuntimeError, match=words):
        run(main)


def test_specs_of_required_modules():
    async def main():
        calls = []
        loader, coordinator = doubles(calls=calls)
        config = plan()
        config["session"]["orchestrator"] = {"module": "loop-x", "source": "there", "config": {"a": 1}}
        config["session"]["context_source"] = "git"
        config["context"] = {"config": {"b": 2}}
        await initialize_session(config, coordinator, "s", None)
        loader.clear_on_session_ready_queue.assert_called_once()
        assert loader.load.await_args_list[0].kwargs["coordinator"] is coordinator
        return calls

    assert run(main) == [("loop-x", {"a": 1}, "there"), ("context-simple", {"b": 2}, "git")]


def test_on_session_ready_is_called_when_all_modules_are_mounted():
    async def main():
        ready, order = AsyncMock(), []

        async def bad(coordinator):
            raise RuntimeError("not ready")

        _, coordinator = doubles(queue=[("bad", bad), ("good", ready)])
        coordinator.hooks.emit = AsyncMock(side_effect=lambda event, data: order.append((event, data)))
        await initialize_session(plan(), coordinator, "s", "parent")
        ready.assert_awaited_once_with(coordinator)
        return order

    order = run(main)
    assert [event for event, _ in order] == [MODULE_ON_SESSION_READY_FAILED, SESSION_FORK]
    assert order[0][1]["module_id"] == "bad"
    assert order[1][1]["parent"] == "parent"


def test_telling_may_fail_too():
    async def main():
        _, coordinator = doubles(failing={"t"})
        coordinator.hooks.emit = AsyncMock(side_effect=RuntimeError("emit is broken"))
        await initialize_session({**plan(), "tools": [{"module": "t"}]}, coordinator, "s", None)
        await _emit_module_load_failed(coordinator, "tool", "t", ValueError("x"))
        return coordinator.hooks.emit.await_count

    assert run(main) >= 1  # it was tried, and its failure kept


def test_on_session_ready_is_not_called_after_a_failed_mount():
    async def main():
        fired = []

        async def ready(coordinator):
            fired.append(True)

        async def bad_mount(coordinator):
            raise RuntimeError("mount failed")

        bad_mount.__on_session_ready__ = ("bad", ready)

        async def load(module_id, config=None, source_hint=None, coordinator=None):
            return bad_mount if module_id == "bad" else AsyncMock(return_value=None)

        loader = MagicMock(spec=ModuleLoader)
        loader.load = AsyncMock(side_effect=load)
        loader._on_session_ready_queue = []
        loader.get_on_session_ready_queue = MagicMock(side_effect=lambda: list(loader._on_session_ready_queue))
        _, coordinator = doubles()
        coordinator.loader = loader
        await initialize_session({**plan(), "tools": [{"module": "bad"}]}, coordinator, "s", None)
        loader.enqueue_on_session_ready.assert_not_called()
        return fired

    assert run(main) == []


def provider_mount(name, instance):
    async def mount(coordinator):
        await coordinator.mount("providers", instance, name=name)

    return mount


def loader_of(coordinator, mounts):
    async def load(module_id, config=None, source_hint=None, coordinator=None):
        given = mounts.get(module_id)
        if isinstance(given, list):
            given = given.pop(0)
        return given or AsyncMock(return_value=None)

    loader = MagicMock(spec=ModuleLoader)
    loader.load = AsyncMock(side_effect=load)
    loader.get_on_session_ready_queue.return_value = []
    coordinator.loader = loader
    return loader


@pytest.fixture(params=["mock", "native"])
def coordinator(request):
    return MockCoordinator() if request.param == "mock" else AmplifierSession(plan()).coordinator


def test_named_instances(coordinator):
    async def main():
        first, second = object(), object()
        loader_of(coordinator, {"provider-x": [provider_mount("x", first), provider_mount("x", second)]})
        config = {**plan(), "providers": [{"module": "provider-x"}, {"module": "provider-x", "instance_id": "named"}]}
        await initialize_session(config, coordinator, "s", None)
        return coordinator.get("providers") == {"x": first, "named": second}

    assert run(main)


def test_a_named_instance_leaves_its_default_name():
    async def main():
        coordinator = MockCoordinator()
        loader_of(coordinator, {"provider-x": provider_mount("x", "p")})
        config = {**plan(), "providers": [{"module": "provider-x", "instance_id": "named"}]}
        await initialize_session(config, coordinator, "s", None)
        return coordinator.get("providers"), coordinator.unmount_history

    assert run(main) == ({"named": "p"}, [{"mount_point": "providers", "name": "x"}])


def test_two_unnamed_instances_are_too_many():
    async def main():
        coordinator = MockCoordinator()
        loader_of(coordinator, {})
        await initialize_session({**plan(), "providers": [{"module": "p"}, {"module": "p"}]}, coordinator, "s", None)

    with pytest.raises(ValueError, match="instance_id"):
        run(main)


def test_a_failed_provider_leaves_no_trace(coordinator):
    async def main():
        original = object()
        await coordinator.mount("providers", original, name="x")
        observed, events = [], []

        async def policy(given, spec, error):
            assert given.get("providers") == {"x": original}
            observed.append((copy.deepcopy(spec), type(error)))
            spec["config"]["changed"] = True
            await given.mount("providers", "unavailable", name=spec["instance_id"])

        async def mount(given):
            await given.mount("providers", object(), name="x")
            await given.mount("providers", object(), name="leaked")
            raise ValueError("broken")

        async def seen(event, data):
            events.append(dict(data))

        coordinator.register_capability("provider.load_failure", policy)
        coordinator.hooks.register("module:load_failed", seen, 0, name="seen")
        loader_of(coordinator, {"provider-x": mount})
        spec = {"module": "provider-x", "instance_id": "account", "config": {"a": 1}}
        config = {"providers": [spec]}
        before = copy.deepcopy(config)
        await initialize_session(config, coordinator, "s", None)
        assert config == before
        assert observed == [(spec, ValueError)]
        assert events[0]["instance_id"] == "account"
        return coordinator.get("providers") == {"x": original, "account": "unavailable"}

    assert run(main)


def test_a_policy_may_stop_everything(coordinator):
    async def main():
        coordinator.register_capability("provider.load_failure", AsyncMock(side_effect=LookupError("stop")))
        loader_of(coordinator, {"provider-x": AsyncMock(side_effect=ValueError("x"))})
        await initialize_session({"providers": [{"module": "provider-x"}]}, coordinator, "s", None)

    with pytest.raises(LookupError, match="stop"):
        run(main)


def test_a_provider_must_mount_something(coordinator):
    async def main():
        events = []
        coordinator.hooks.register("module:load_failed", lambda e, d: events.append(d["error"]), 0, name="seen")
        coordinator.register_capability("provider.before_load", AsyncMock())
        loader_of(coordinator, {})
        await initialize_session({"providers": [{"module": "provider-x"}]}, coordinator, "s", None)
        coordinator.get_capability("provider.before_load").assert_awaited_once()
        return events

    assert "did not install" in run(main)[0]
