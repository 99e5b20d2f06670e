"""Opening: the order of mounting, all lifetime forms, failures undone and announced, readiness. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
from collections import UserDict
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from amplifier import (
    AmplifierError,
    AmplifierSession,
    ContractError,
    ModuleLoader,
    ModuleLoadError,
    ModuleNotFoundError,
)
from amplifier.testing import MockProvider
from tests._support.small_agent import Echo, Loop, Memory, agent, heard, mounting, repeat_prompt

pytestmark = pytest.mark.virtual_time


def noting(log, name, result=None):
    async def mount(coordinator, config):
        log.append(name)
        return result

    return mount


def failing(error=None):
    async def mount(coordinator, config):
        raise error or ValueError("broke")

    return mount


def closing(log):
    async def mount(coordinator, config):
        log.append("mounted")

        async def cleanup():
            log.append("closed")

        return cleanup

    return mount


def mounting_late():
    async def mount(coordinator, config):
        await anyio.sleep(10)

    return mount


def session_of(modules, plan):
    base = {"loop-small": mounting(Loop(repeat_prompt)), "context-small": mounting(Memory())}
    plan = {
        **plan,
        "session": {
            "orchestrator": "loop-small",
            "context": "context-small",
            **plan.get("session", {}),
        },
    }
    return AmplifierSession(plan, loader=ModuleLoader(modules={**base, **modules}))


# ── order and the forms of a plan ────────────────────────────────────────────────────────────────


async def test_modules_are_mounted_by_kind_and_order(log):
    session = agent(
        orchestrator=noting(log, "orchestrator", Loop(repeat_prompt)),
        context=noting(log, "context", Memory()),
        providers={
            "provider-b": noting(log, "provider b"),
            "provider-a": noting(log, "provider a"),
        },
        tools={"tool-b": noting(log, "tool b"), "tool-a": noting(log, "tool a")},
        hooks={"hooks-b": noting(log, "hook b"), "hooks-a": noting(log, "hook a")},
    )
    async with session:
        pass
    expected = [
        "orchestrator",
        "context",
        "provider b",
        "provider a",
        "tool b",
        "tool a",
        "hook b",
        "hook a",
    ]
    assert log == expected


async def test_plan_is_read_at_opening():
    session = agent()
    session.config["tools"].append("tool-echo")
    session.loader.register("tool-echo", mounting(Echo()))
    async with session:
        assert list(session.coordinator.get("tools")) == ["echo"]


async def test_plan_oddities_are_logged(caplog):
    session = agent(session={"colour": 1})
    async with session:
        pass
    assert "$.session.colour: unknown key, ignored" in caplog.text


# ── lifetime forms ───────────────────────────────────────────────────────────────────────────────


async def test_self_mounted_instance_is_mounted_once():
    called = []

    class Callable(Echo):
        def __call__(self):
            called.append("called")

    async def mount(coordinator, config):
        tool = Callable()
        await coordinator.mount("tools", tool, name="alias")
        return tool

    async with agent(tools={"tool-a": mount}) as session:
        assert list(session.coordinator.get("tools")) == ["alias"]
    assert called == []


@pytest.mark.parametrize("kind", ["tools", "hooks", "providers"])
async def test_returned_callable_is_cleanup(kind, log):
    prefix = {"tools": "tool", "hooks": "hooks", "providers": "provider"}[kind]
    modules: dict[str, Any] = {
        kind: {f"{prefix}-a": noting(log, "mounted", lambda: log.append("cleaned up"))}
    }
    async with agent(**modules):
        assert log == ["mounted"]
    assert log == ["mounted", "cleaned up"]


@pytest.mark.parametrize(
    "result", [None, 5, "text", [], Echo], ids=["None", "int", "str", "list", "class"]
)
async def test_other_return_values_are_ignored(result):
    async with agent(
        tools={"tool-a": mounting(result if result is not Echo else SimpleNamespace())}
    ) as session:
        assert session.failures == []
        assert session.coordinator.get("tools") == {}
        assert session.statistics().cleanups == 0


async def test_sync_and_bare_mounts_are_accepted(log):
    class Loader:
        async def load(self, module_id, config=None, source_hint=None):
            instances = {"loop-a": Loop(repeat_prompt), "context-a": Memory()}

            def mount(coordinator):
                log.append((module_id, config, source_hint))
                return instances.get(module_id)

            return mount

    plan = {
        "session": {"orchestrator": {"module": "loop-a", "source": "here"}, "context": "context-a"},
        "tools": [{"module": "tool-a", "config": {"k": 1}}],
    }
    async with AmplifierSession(plan, loader=Loader()) as session:
        assert await session.execute("hi") == "hi"
    assert log == [("loop-a", {}, "here"), ("context-a", {}, None), ("tool-a", {"k": 1}, None)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (5, "the loader returned 5 for 'loop-a'"),
        (asyncio.CancelledError(), "although nothing was cancelled"),
    ],
    ids=["nonsense", "made-up cancellation"],
)
async def test_faulty_loader_is_named(answer, words):
    class Loader:
        def load(self, module_id, config=None, source_hint=None):
            if isinstance(answer, BaseException):
                raise answer
            return answer

    plan = {"session": {"orchestrator": "loop-a", "context": "context-a"}}
    with pytest.raises(ModuleLoadError, match=words):
        async with AmplifierSession(plan, loader=Loader()):
            pass


async def test_application_resolver_precedes_own_loader(log):
    class Resolver:
        def resolve(self, module_id, source_hint=None, profile_hint=None):
            log.append(module_id)
            raise ModuleNotFoundError(f"no source for {module_id}", module_id=module_id)

    session = agent(tools={"tool-a": mounting(Echo())})
    await session.coordinator.mount("module-source-resolver", Resolver())
    async with session:
        pass
    assert log == ["loop-small", "context-small", "tool-a"]


async def test_missing_orchestrator_is_noticed_at_first_turn():
    session = agent(orchestrator=mounting(None))
    async with session:
        with pytest.raises(RuntimeError, match="No orchestrator module mounted"):
            await session.execute("hi")
    session = agent(context=mounting(None))
    async with session:
        with pytest.raises(RuntimeError, match="No context manager mounted"):
            await session.execute("hi")


# ── instances of one provider ────────────────────────────────────────────────────────────────────


def by_hand(name):
    async def mount(coordinator, config):
        await coordinator.mount("providers", MockProvider(name=config.get("name", name)), name=name)

    return mount


@pytest.mark.parametrize("form", ["returned", "mounted"])
@pytest.mark.parametrize("strict", [False, True])
async def test_provider_instances_have_own_ids(form, strict, caplog):
    async def returned(coordinator, config):
        return MockProvider()

    plan = {
        "session": {"strict": strict},
        "providers": [
            {"module": "provider-mock"},
            {"module": "provider-mock", "instance_id": "fast"},
            {"module": "provider-mock", "instance_id": "slow"},
        ],
    }
    session = session_of(
        {"provider-mock": returned if form == "returned" else by_hand("mock")}, plan
    )
    async with session:
        providers = session.coordinator.get("providers")
        assert sorted(providers) == ["fast", "mock", "slow"]
        assert len({id(provider) for provider in providers.values()}) == 3
    assert "replaced" not in caplog.text


async def test_self_named_or_declining_instance_is_kept():
    async def mount(coordinator, config):
        if config:
            await coordinator.mount("providers", MockProvider(), name=config["name"])

    entries = [
        {"module": "provider-mock", "instance_id": "fast", "config": {"name": "fast"}},
        {"module": "provider-mock", "instance_id": "odd", "config": {"name": "something else"}},
        {"module": "provider-mock", "instance_id": "none"},
    ]
    async with session_of({"provider-mock": mount}, {"providers": entries}) as session:
        assert sorted(session.coordinator.get("providers")) == ["fast", "odd"]
        assert session.failures == []


async def test_failed_instance_leaves_others():
    async def mount(coordinator, config):
        await coordinator.mount("providers", MockProvider(), name="mock")
        if config:
            raise ValueError("no key")

    entries = [
        {"module": "provider-mock"},
        {"module": "provider-mock", "instance_id": "fast", "config": {"fail": True}},
    ]
    session = session_of({"provider-mock": mount}, {"providers": entries})
    events = heard(session, "module:load_failed")
    async with session:
        assert list(session.coordinator.get("providers")) == ["mock"]
    assert (events[0][1]["module_id"], events[0][1]["instance_id"]) == ("provider-mock", "fast")
    assert session.failures[0].instance_id == "fast"


async def test_repeated_tool_module_is_mounted_twice(log):
    async def mount(coordinator, config):
        coordinator.register_cleanup(lambda: log.append(f"cleaned {config['name']}"))
        await coordinator.mount("tools", Echo(config["name"]))
        if config["name"] == "two":
            raise ValueError("broke")

    entries = [{"module": "tool-a", "config": {"name": name}} for name in ("one", "two")]
    async with session_of({"tool-a": mount}, {"tools": entries}) as session:
        assert list(session.coordinator.get("tools")) == ["one"]
        assert log == ["cleaned two"]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["providers", "tools", "hooks"])
async def test_failed_module_is_announced_to_later_hooks(kind, log, caplog):
    async def listener(coordinator, config):
        coordinator.hooks.register("module:load_failed", lambda event, data: log.append(data))

    prefix = {"providers": "provider", "tools": "tool", "hooks": "hooks"}[kind]
    modules: dict[str, Any] = {"providers": {}, "tools": {}, "hooks": {}}
    modules[kind] = {
        f"{prefix}-ok": mounting(None),
        f"{prefix}-bad": failing(ValueError("no luck")),
    }
    modules["hooks"]["hooks-listener"] = listener
    async with agent(**modules) as session:
        [failure] = session.failures
        assert await session.execute("still works") == "still works"
    assert (failure.module_id, failure.module_type, failure.phase) == (
        f"{prefix}-bad",
        prefix.rstrip("s"),
        "mount",
    )
    assert isinstance(failure.error, ModuleLoadError)
    assert isinstance(failure.error.__cause__, ValueError)
    [data] = log
    assert (data["module_id"], data["module_type"]) == (f"{prefix}-bad", prefix.rstrip("s"))
    assert data["reason_code"] == "mount_failed"
    assert "no luck" in data["error"]
    assert (session.status.last_error or {})["failed_modules"] == [f"{prefix}-bad"]
    assert "Traceback" in caplog.text
    assert "no luck" in caplog.text
    [record] = [record for record in caplog.records if record.name == "amplifier.session"]
    assert record.levelno == logging.WARNING
    assert f"$.{kind}[1]" in record.getMessage()


async def test_unmountable_gate_ends_opening(log):
    """Going on without it would let everything through that it was to stop."""
    hook = {"module": "hooks-gate", "on_failure": "deny"}
    session = session_of(
        {"hooks-gate": failing(), "tool-a": closing(log)}, {"tools": ["tool-a"], "hooks": [hook]}
    )
    with pytest.raises(ModuleLoadError, match="hooks-gate"):
        await session.__aenter__()
    assert log == ["mounted", "closed"]
    for wrong in (
        {"module": "hooks-gaet", "on_failure": "deny"},
        {"module": "hooks-late", "on_failure": "deny"},
    ):
        late = {"hooks-late": mounting_late()}
        with pytest.raises(AmplifierError, match=wrong["module"]):
            await session_of(
                late, {"hooks": [wrong], "session": {"deadlines": {"mount": 1}}}
            ).__aenter__()
    async with session_of({"hooks-gate": failing()}, {"hooks": ["hooks-gate"]}) as going_on:
        assert [failure.module_id for failure in going_on.failures] == ["hooks-gate"]


async def test_unready_gate_ends_opening():
    async def ready(coordinator):
        raise ValueError("no rules")

    hook = {"module": "hooks-gate", "on_failure": "deny"}
    with pytest.raises(ModuleLoadError, match=r"hooks-gate.*no rules"):
        await session_of({"hooks-gate": ready_module(ready)}, {"hooks": [hook]}).__aenter__()


async def test_strict_mode_groups_all_failures(log):
    session = agent(
        context=failing(OSError("context")),
        tools={
            "tool-a": failing(ValueError("tool")),
            "tool-b": noting(log, "b", lambda: log.append("b closed")),
        },
        hooks={"hooks-a": failing(LookupError("hook"))},
        session={"strict": True},
    )
    named = "session.strict: 3 of the plan's modules failed: context 'context-small', tool 'tool-a', hook 'hooks-a'"
    with pytest.raises(ExceptionGroup, match=named) as caught:
        async with session:
            log.append("never reached")
    assert [type(error.__cause__) for error in caught.value.exceptions] == [
        OSError,
        ValueError,
        LookupError,
    ]
    assert [getattr(error, "module_id", None) for error in caught.value.exceptions] == [
        "context-small",
        "tool-a",
        "hooks-a",
    ]
    assert log == ["b", "b closed"]


@pytest.mark.parametrize("form", ["async", "sync"])
async def test_failed_module_cleanup_exceeds_mount_deadline(form, log):
    async def cleanup():
        await anyio.sleep(8)
        log.append("cleaned up")

    async def mount(coordinator, config):
        coordinator.register_cleanup(cleanup)
        await anyio.sleep(4)
        raise ValueError("broke")

    def mount_at_once(coordinator, config):
        coordinator.register_cleanup(cleanup)
        raise ValueError("broke")

    async def mount_next(coordinator, config):
        await anyio.sleep(4)
        log.append("next one mounted")

    tools = {"tool-a": mount if form == "async" else mount_at_once, "tool-b": mount_next}
    async with agent(tools=tools, session={"deadlines": {"mount": 5}}) as session:
        assert log == ["cleaned up", "next one mounted"]
        assert [failure.reason_code for failure in session.failures] == ["mount_failed"]


# ── readiness ────────────────────────────────────────────────────────────────────────────────────


def ready_module(ready, log=None, name=""):
    async def mount(coordinator, config):
        if log is not None:
            log.append(f"mount {name}")

    return SimpleNamespace(mount=mount, on_session_ready=ready)


async def test_failed_module_is_not_made_ready(log):
    async def ready(coordinator):
        log.append("ready")

    async def mount_listener(coordinator, config):
        coordinator.hooks.register("module:load_failed", lambda event, data: log.append(event))

    bad = SimpleNamespace(mount=failing(), on_session_ready=ready)
    good = SimpleNamespace(mount=mount_listener, on_session_ready=ready)
    async with agent(tools={"tool-bad": bad}, hooks={"hooks-a": good}):
        pass
    assert log == ["module:load_failed", "ready"]


@pytest.mark.parametrize("error", [ValueError("not yet"), SystemExit(3)], ids=["error", "exit"])
async def test_unready_module_stays_and_is_announced(error, log, caplog):
    async def fail(coordinator):
        raise error

    async def ready(coordinator):
        log.append("next is ready")

    session = agent(hooks={"hooks-a": ready_module(fail), "hooks-b": ready_module(ready)})
    events = heard(session, "module:on_session_ready_failed")
    async with session:
        [failure] = session.failures
        assert await session.execute("hi") == "hi"
    assert (failure.module_id, failure.phase, failure.reason_code) == (
        "hooks-a",
        "ready",
        "ready_failed",
    )
    assert events[0][1]["module_id"] == "hooks-a"
    assert log == ["next is ready"]
    assert "on_session_ready of module 'hooks-a' failed" in caplog.text


async def test_ready_failure_is_announced_without_deadline(log):
    async def ready(coordinator):
        log.append("ready")

    async def fail(coordinator, config):  # cannot be called with the coordinator only
        log.append("never")

    async def hear(event, data):
        await anyio.sleep(8)
        log.append(event)

    hooks = {
        "hooks-a": ready_module(ready),
        "hooks-b": ready_module(fail),
        "hooks-c": ready_module(ready),
    }
    session = agent(hooks=hooks, session={"deadlines": {"ready": 5}})
    session.coordinator.hooks.register("module:on_session_ready_failed", hear)
    async with session:
        assert [failure.module_id for failure in session.failures] == ["hooks-b"]
    assert log == ["ready", "module:on_session_ready_failed", "ready"]


# ── groups ───────────────────────────────────────────────────────────────────────────────────────


async def start_what_is_not_there(*_):
    async def start():
        raise FileNotFoundError("command not found: mcp-server, token=sk-ant-api03-" + "a" * 90)

    async with anyio.create_task_group() as group:
        group.start_soon(start)


@asynccontextmanager
async def hosting_what_is_not_there(coordinator, config):
    await start_what_is_not_there()
    yield Echo()


@pytest.mark.parametrize(
    "mount", [start_what_is_not_there, hosting_what_is_not_there], ids=["seed", "structured"]
)
async def test_mount_group_error_names_its_parts(mount, caplog):
    session = agent(tools={"tool-mcp": mount})
    events = heard(session, "module:load_failed")
    async with session:
        [failure] = session.failures
    text = "tool 'tool-mcp' failed to mount: FileNotFoundError: command not found: mcp-server, token=[REDACTED"
    assert str(failure.error).startswith(text)
    assert events[0][1]["error"].startswith(text)
    assert isinstance(failure.error.__cause__, ExceptionGroup)
    assert text in caplog.text


async def test_large_error_group_names_first_parts():
    leaves = [ValueError(f"no. {number}") for number in range(7)]
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", leaves[:3]), *leaves[3:]])
    session = agent(tools={"tool-a": failing(nested)})
    async with session:
        [failure] = session.failures
    assert str(failure.error) == (
        "tool 'tool-a' failed to mount: ExceptionGroup of ValueError: no. 0; ValueError: no. 1; ValueError: no. 2; "
        "ValueError: no. 3; ValueError: no. 4; and 2 more"
    )


# ── lineage ──────────────────────────────────────────────────────────────────────────────────────


async def test_child_announces_itself_last(log):
    async def ready(coordinator):
        log.append("ready")

    async def mount(coordinator, config):
        coordinator.hooks.register("session:fork", lambda event, data: log.append(data))

    module = SimpleNamespace(mount=mount, on_session_ready=ready)
    session = agent(
        hooks={"hooks-a": module}, session={"metadata": {"k": 1}}, parent_id="p", session_id="c"
    )
    async with session:
        pass
    assert log[0] == "ready"
    assert (
        log[1].items()
        >= {"parent": "p", "parent_id": "p", "session_id": "c", "metadata": {"k": 1}}.items()
    )
    assert "raw" not in log[1]


async def test_raw_session_start_hides_secrets():
    session = agent(session={"raw": True}, parent_id="p")
    session.config["tools"] = [
        {"module": "tool-a", "config": {"api_key": "sk-secret-secret-secret"}}
    ]
    session.loader.register("tool-a", mounting(Echo()))
    events = heard(session, "session:fork")
    async with session:
        pass
    raw = events[0][1]["raw"]
    assert raw["session"]["orchestrator"] == "loop-small"
    assert "sk-secret" not in str(raw)


async def test_failed_structured_module_runs_cleanups(log):
    @asynccontextmanager
    async def mount(coordinator, config):
        log.append("entered")
        try:
            yield Echo()
        finally:
            log.append("left")

    tools = {"tool-a": mounting(Echo()), "tool-b": mount}
    with pytest.raises(ContractError, match="replaced by tool-b"):
        async with agent(tools=tools, session={"strict": True}):
            pass
    assert log == ["entered", "left"]


@pytest.mark.parametrize(
    ("change", "tools"),
    [
        (lambda config: None, ["echo"]),
        (lambda config: config["tools"].clear(), []),
        (lambda config: config.update(tools=[]), []),
        (lambda config: config["tools"][0].update(module="tool-other"), ["other"]),
    ],
    ids=["nothing", "a list", "a section", "an entry"],
)
async def test_plan_change_before_opening_counts(change, tools):
    session = agent(tools={"tool-echo": mounting(Echo())})
    session.loader.register("tool-other", mounting(Echo("other")))
    change(session.config)
    async with session:
        assert list(session.coordinator.get("tools")) == tools


async def test_change_inside_another_container_counts():
    """Only dicts and lists are compared part by part."""
    received: list[dict[str, Any]] = []

    async def mount(coordinator, config):
        received.append(config)

    session = agent(tools={"tool-echo": mount})
    options = UserDict({"key": 1})
    session.config["tools"][0]["config"] = options
    session = AmplifierSession(session.config, loader=session.loader)
    options["key"] = 2
    async with session:
        assert received == [{"key": 2}]
