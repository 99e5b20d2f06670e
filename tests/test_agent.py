"""An agent in a few lines: plans with the things themselves, and `agent`, which makes such plans."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sniffio import current_async_library

from amplifier import (
    AmplifierError,
    AmplifierSession,
    ApprovalQuestion,
    ModuleLoadError,
    PlanError,
    agent,
    on,
    run_sync,
    tool,
)
from amplifier.agents import AgentOptions
from amplifier.conformance import check_module
from amplifier.durable import open_engine
from amplifier.plan import plan_json
from amplifier.plan.dicts import module_hashes, plan_changes
from amplifier.testing import MockProvider, MockTool, script
from tests._support.forked import run_forked


async def weather(city: str, days: int = 3) -> dict[str, int]:
    """Tells the weather."""
    return {city: days}


def plan_of(**sections: Any) -> dict[str, Any]:
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
        **sections,
    }


async def messages_of(session: AmplifierSession) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await session.coordinator.get("context").get_messages()
    return found


# ── plans ──


async def test_functions_instances_and_mount_functions_are_modules():
    cleaned: list[str] = []
    given: list[Any] = []

    async def mount(coordinator, config):
        given.append(config)
        await coordinator.mount("tools", MockTool("mounted"), name="mounted")
        return lambda: cleaned.append("mounted")

    @asynccontextmanager
    async def held(coordinator, config):
        yield MockTool("held")
        cleaned.append("held")

    heard: list[str] = []

    @on("tool:pre")
    async def listen(event, data):
        heard.append(data["tool_name"])

    provider = MockProvider(
        [[("weather", {"city": "Oslo"}), ("own", {}), ("mounted", {}), ("held", {})], "Done."]
    )
    tools = [weather, MockTool("own"), {"module": mount, "config": {"a": 1}}, held]
    async with AmplifierSession(
        plan_of(providers=[provider], tools=tools, hooks=[listen])
    ) as session:
        assert await session.execute("go") == "Done."
        roles = [message["role"] for message in await messages_of(session)]
        assert roles == ["user", "assistant", *["tool"] * 4, "assistant"]
    assert sorted(heard) == ["held", "mounted", "own", "weather"]
    assert given == [{"a": 1}]
    assert cleaned == ["held", "mounted"]


@pytest.mark.parametrize(
    ("section", "thing", "message"),
    [
        (
            "tools",
            MockTool,
            r"\$\.tools\[0\] is not a tool: .* got the class MockTool; write MockTool\(…\)",
        ),
        (
            "tools",
            MockProvider([]),
            r"\$\.tools\[0\] is not a tool: expected the id of a module, a function, an object with name",
        ),
        (
            "hooks",
            weather,
            r"\$\.hooks\[0\] is not a hook: .* got the function weather\(.*\) -> .* without @on; name its events, as in @on\('tool:pre'\)",
        ),
        (
            "providers",
            weather,
            r"\$\.providers\[0\] is not a provider: .* an object with name and complete",
        ),
    ],
)
async def test_misplaced_module_error_names_section(section, thing, message):
    sections = {"providers": [MockProvider([])], section: [thing]}
    with pytest.raises(ModuleLoadError, match=message) as caught:
        async with AmplifierSession(plan_of(**sections)):
            pass
    assert caught.value.module_id.startswith(section.removesuffix("s"))


@pytest.mark.parametrize("thing", [3, 3.5, True, b"x", ["tool-todo"], {"x"}], ids=repr)
async def test_non_module_is_plan_problem(thing):
    with pytest.raises(
        PlanError, match=r"\$\.tools\[0\]: expected a module: its id, or a mapping with 'module'"
    ):
        AmplifierSession(plan_of(tools=[thing]))


async def test_called_function_is_not_module():
    called = weather("Oslo")
    with pytest.raises(
        PlanError,
        match=r"\$\.tools\[0\]: .*, got a coroutine; write the function itself, without \(…\)",
    ):
        agent("offline", tools=[called])
    called.close()


def test_plan_with_objects_has_no_json():
    plan = plan_of(
        providers=[MockProvider([])], tools=["tool-todo", weather, {"module": MockTool("own")}]
    )
    with pytest.raises(PlanError) as caught:
        plan_json(plan)
    assert [path for path, _ in caught.value.problems] == [
        "$.providers[0]",
        "$.tools[1]",
        "$.tools[2].module",
    ]
    assert "got the function weather, which only this process has: write the id" in str(
        caught.value
    )
    assert json.loads(plan_json(plan_of(tools=["tool-todo"]))) == plan_of(tools=["tool-todo"])
    with pytest.raises(
        PlanError, match=r"\$\.tools\[0\]\.config\.client: expected a JSON value, got object"
    ):
        plan_json(plan_of(tools=[{"module": "tool-todo", "config": {"client": object()}}]))
    with pytest.raises(PlanError, match="expected a plan, which is a dict, got 3"):
        plan_json(3)  # type: ignore[arg-type]


def test_objects_are_same_modules_everywhere():
    def made() -> dict[str, Any]:
        async def mount(coordinator, config): ...

        return plan_of(
            providers=[MockProvider([])], tools=[weather, {"module": mount, "config": {"a": mount}}]
        )

    before = module_hashes(made())
    assert plan_changes(before, made()) == []
    assert plan_changes(before, plan_of(tools=[weather])) == [
        "provider-mock is not in the plan any more",
        "tool-mount is not in the plan any more",
    ]


async def test_events_carry_object_ids():
    raw: list[Any] = []

    @on("session:fork")
    async def listen(event, data):
        raw.append(data["raw"])

    plan = plan_of(providers=[MockProvider([])], tools=[weather], hooks=[listen])
    plan["session"]["raw"] = True
    async with AmplifierSession(plan) as parent, parent.fork(plan):
        pass
    assert raw[0]["tools"] == ["tool-weather"]


async def test_kit_refuses_plan_with_objects():
    with pytest.raises(
        ValueError,
        match=r"plan: \$\.tools\[0\] is the function weather; the module runs in a separate process",
    ):
        await check_module("tool-todo", plan={"tools": [weather]})


async def test_engine_takes_session_factory(tmp_path):
    async with open_engine(tmp_path / "turns.db") as engine:
        for given in (plan_of(tools=[weather]), agent("offline")):
            with pytest.raises(
                TypeError,
                match="expected a function that makes the session of a turn, because every",
            ):
                await engine.work(given)  # type: ignore[arg-type]


# ── agent() ──


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        (
            "anthropic:claude-x",
            {"module": "provider-anthropic", "config": {"default_model": "claude-x"}},
        ),
        ("openai:gpt-x", {"module": "provider-openai", "config": {"default_model": "gpt-x"}}),
        ("offline", {"module": "provider-offline"}),
        (
            "openai-compatible:qwen3:8b@http://127.0.0.1:11434/v1",
            {
                "module": "provider-openai-compatible",
                "config": {"default_model": "qwen3:8b", "base_url": "http://127.0.0.1:11434/v1"},
            },
        ),
    ],
)
def test_model_is_named_by_provider_and_model(model, entry):
    assert agent(model).config["providers"] == [entry]


def test_agent_makes_plan(tmp_path):
    (tmp_path / "rules.md").write_text("Be polite.\n")
    made = agent(
        "offline",
        tools=["tool-todo"],
        mcp=[
            "bin/server.py --quick 'two words'",
            "https://example.org/mcp",
            {"name": "own", "command": "x"},
            {"command": "server"},
        ],
        instructions=["Be brief.", tmp_path / "rules.md"],
        budget={"tool_calls": 5},
        memory=tmp_path / "talks",
        approve="deny",
        plan={"session": {"deadlines": {"turn": 60}}},
    )
    assert made.session_id == "main"
    assert made.config == {
        "session": {
            "orchestrator": {
                "module": "loop-streaming",
                "config": {"system_prompt": "Be brief.\n\nBe polite."},
            },
            "context": {
                "module": "context-persistent",
                "config": {"path": str(tmp_path / "talks")},
            },
            "strict": True,
            "budget": {"tool_calls": 5},
            "deadlines": {"turn": 60},
        },
        "providers": [{"module": "provider-offline"}],
        "tools": [
            "tool-todo",
            {
                "module": "tool-mcp",
                "config": {
                    "servers": {
                        "server": {
                            "required": True,
                            "command": "bin/server.py",
                            "args": ["--quick", "two words"],
                        },
                        "example-org": {"required": True, "url": "https://example.org/mcp"},
                        "own": {"required": True, "command": "x"},
                        "server-2": {"required": True, "command": "server"},
                    }
                },
            },
        ],
        "hooks": [{"module": "hooks-approval", "on_failure": "deny"}],
    }


async def test_unstartable_server_fails_at_opening():
    with pytest.raises(
        AmplifierError, match="the command 'no-such-server' was not found on the search path"
    ):
        async with agent(script("Hi."), mcp=["no-such-server"]):
            pass


@pytest.mark.parametrize("hooks", [None, [], ["hooks-logging"]])
async def test_plan_keeps_argument_results(hooks):
    asked: list[str] = []

    def refuse(question: ApprovalQuestion) -> bool:
        asked.append(question.tool)
        return False

    plan = {"tools": [MockTool("own")], "hooks": hooks}
    calls = script([("weather", {"city": "Oslo"}), ("own", {})], "Done.")
    async with agent(calls, tools=[weather], approve=refuse, plan=plan) as session:
        await session.execute("go")
        assert [call.success for call in session.last_turn.tool_calls] == [False, False]
    assert len(asked) == 2


def test_own_approval_module_is_only_one():
    own = {"module": "hooks-approval", "config": {"rules": []}, "on_failure": "deny"}
    assert agent("offline", approve="deny", hooks=[own]).config["hooks"] == [own]
    assert agent("offline", approve="deny", plan={"hooks": ["hooks-approval"]}).config["hooks"] == [
        "hooks-approval"
    ]


async def test_server_tools_are_present():
    server = Path(__file__).parent / "modules" / "tools" / "mcp" / "small_server.py"
    async with agent(script("Hi."), mcp=[shlex.join([sys.executable, str(server)])]) as session:
        assert session.coordinator.get("tools")


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": {"tool_calls": 9}},
        *({"approve": lambda _, a=answer: a} for answer in ("n", "Deny", 1, None)),
    ],
    ids=["no one", "no one, metered", "n", "Deny", "1", "None"],
)
async def test_marked_function_asks_in_every_wrapper(is_partial, options, tmp_path, monkeypatch):
    """Only True allows the call."""
    # The places below the current folder are looked through before a path is judged.
    monkeypatch.chdir(tmp_path)
    deleted: list[str] = []

    @tool(approve=True)
    def delete(path: str, root: str = "/") -> None:
        """Delete a file."""
        deleted.append(path)

    given = functools.partial(delete, root="/home") if is_partial else delete
    async with agent(script(("delete", {"path": "a"}), "x"), tools=[given], **options) as session:
        await session.execute("x")
        assert not session.last_turn.tool_calls[0].success
    assert deleted == []


async def test_function_decides_about_tool_calls():
    asked: list[str] = []

    async def decide(question: ApprovalQuestion) -> bool:
        asked.append(question.tool)
        return question.arguments == {"city": "Oslo"}

    calls = [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]
    provider = MockProvider([[call] for call in calls] + ["Done."])
    async with agent(provider, tools=[weather], approve=decide) as session:
        assert await session.execute("go") == "Done."
        results = [
            message["content"]
            for message in await messages_of(session)
            if message["role"] == "tool"
        ]
    assert len(asked) == 2
    assert json.loads(results[0]) == {"Oslo": 3}
    assert results[1].startswith("denied")


# ── once, without a session ──


def test_run_has_options_of_agent():
    words_of_a_sub_agent = {"name", "description", "unknown"}
    of_agent = [
        name for name in inspect.signature(agent).parameters if name not in words_of_a_sub_agent
    ]
    assert list(AgentOptions.__annotations__) == of_agent[1:]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_sync_script_asks_once(backend):
    seen: list[str] = []

    async def where() -> str:
        """Tells the event loop."""
        seen.append(current_async_library())
        return "here"

    with script(("where", {}), "There.", '{"Oslo": 3}') as model:
        assert run_sync("go", model, tools=[where], backend=backend) == "There."
        assert run_sync("go", model, result_type=dict[str, int], backend=backend) == {"Oslo": 3}
    assert seen == [backend]


def test_run_sync_refuses_unknown_event_loop():
    with pytest.raises(PlanError, match=r"backend: expected 'asyncio', or 'trio'.*got 'curio'"):
        run_sync("go", "offline", backend="curio")  # type: ignore[call-overload]


INTERRUPTED = """
import contextlib, os, signal, sys
import anyio
from amplifier import run_sync
from amplifier.testing import script

async def wait() -> str:
    "Waits."
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()
    finally:
        print("tool ended")

@contextlib.asynccontextmanager
async def held(coordinator, config):
    yield
    print("closed")

try:
    run_sync("go", script(("wait", {}), "never"), tools=[wait], hooks=[held], backend=sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_ends_turn_and_closes_agent(backend):
    done = run_forked([sys.executable, "-c", INTERRUPTED, backend], text=True)
    assert (done.stdout.split("\n"), done.stderr) == (
        ["tool ended", "closed", "interrupted", ""],
        "",
    )
    assert done.returncode == 0
