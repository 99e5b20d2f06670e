"""The step journal: what it keeps, what it refuses, and that a turn can be resumed from every state that it can be in."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import (
    AmplifierSession,
    ChatResponse,
    HookResult,
    ModuleLoader,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.contracts import Step
from amplifier.errors import NoOneToAskError
from amplifier.modules.context.persistent import JournalError
from amplifier.store import StoreDamagedError
from amplifier.testing import MODES, MockApprovalSystem, MockProvider, cancel_everywhere
from tests._support.forked import run_forked
from tests._support.small_agent import mounting
from tests._support.tree import ROOT
from tests.modules import durable_agent as agent

LOOPS = ["loop-streaming", "loop-events"]


class Tool:
    description = "Works."

    def __init__(self, name: str, work: Any, repeatable: bool | None = None) -> None:
        self.name = name
        self._work = work
        self.repeatable = repeatable

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        return ToolResult(output=await self._work())


async def nothing() -> str:
    return "done"


def make_session(
    root: Path,
    *tools: Tool,
    script: list[Any] | None = None,
    loop: str = "loop-basic",
    hook: Any = None,
    approvals: Any = None,
    durable: bool = True,
    provider: Any = None,
) -> AmplifierSession:

    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register("*", hook or (lambda event, data: None))

    modules = {f"tool-{tool.name}": mounting(tool) for tool in tools}
    modules |= {"provider-scripted": mounting(provider or MockProvider(script or ["All done."]))}
    modules["hooks-test"] = mount_hook
    config = {"path": str(root), "durable_turns": durable}
    plan = {
        "session": {
            "orchestrator": loop,
            "context": {"module": "context-persistent", "config": config},
        },
        "providers": ["provider-scripted"],
        "tools": [f"tool-{tool.name}" for tool in tools],
        "hooks": ["hooks-test"],
    }
    return AmplifierSession(
        plan, ModuleLoader(modules=modules), session_id=agent.SESSION, approval_system=approvals
    )


async def crash_image(root: Path, loop: str = "loop-basic") -> Path:
    """What a kill leaves behind: of three calls one has a result that waits for the first one's, and the third was never started."""
    image = root / "image"
    fast_is_known, third_asks, copied = anyio.Event(), anyio.Event(), anyio.Event()

    async def note(step: Step, run: Any) -> Any:
        result = await run()
        if step.call.tool_name == "fast":
            fast_is_known.set()
        return result

    async def slow() -> str:
        await fast_is_known.wait()
        await third_asks.wait()
        await anyio.to_thread.run_sync(shutil.copytree, root / "live", image)
        copied.set()
        return "slow"

    async def fast() -> str:
        return "fast"

    async def hold_third(event: str, data: dict[str, Any]) -> HookResult:
        if event == "tool:pre" and data["tool_name"] == "third":
            third_asks.set()
            await copied.wait()
        return HookResult()

    tools = (Tool("slow", slow), Tool("fast", fast), Tool("third", nothing))
    calls: list[Any] = [[("slow", {}), ("fast", {}), ("third", {})], "All done."]
    session = make_session(root / "live", *tools, script=calls, loop=loop, hook=hold_third)
    session.coordinator.register_step_wrapper(
        note
    )  # before the context's, so it sees what that has recorded
    async with session:
        await session.execute("go")
    return image


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_waiting_result_is_kept(tmp_path: Path, loop: str) -> None:
    """A call that never began runs."""
    image = await crash_image(tmp_path, loop)
    assert outputs(agent.messages_in(image)) == []
    ran: list[str] = []
    reports: list[Any] = []

    async def run() -> str:
        ran.append("ran")
        return "now"

    def note(event: str, data: dict[str, Any]) -> None:
        if event == "turn:resumed":
            reports.append([(call["tool_name"], call["outcome"]) for call in data["calls"]])

    tools = [Tool(name, run, repeatable=False) for name in ("slow", "fast", "third")]
    async with make_session(image, *tools, loop=loop, hook=note) as session:
        assert await session.resume_turn() == "All done."
        assert session.coordinator.turn_number == 1
    interrupted, fast, third = outputs(agent.messages_in(image))
    assert "[interrupted" in interrupted
    assert (fast, third, ran) == ("fast", "now", ["ran"])
    assert reports == [[("slow", "interrupted"), ("fast", "kept"), ("third", "started")]]
    assert agent.steps_in(image) == []


@pytest.mark.parametrize("loop", LOOPS)
async def test_resumed_turn_has_given_type(tmp_path: Path, loop: str) -> None:
    image = await crash_image(tmp_path, loop)
    async with make_session(image, script=[("final_result", {"result": 3})], loop=loop) as session:
        assert await session.resume_turn(result_type=int) == 3
    assert "there is no tool named 'final_result'" not in str(agent.messages_in(image))


async def test_new_prompt_gives_up_turn_keeping_results(tmp_path: Path) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image, script=["Fine."]) as session:
        assert await session.execute("something else") == "Fine."
    messages = agent.messages_in(image)
    assert [m["role"] for m in messages] == [
        "user",
        "assistant",
        *["tool"] * 3,
        "assistant",
        "user",
        "assistant",
    ]
    slow, fast, third = outputs(messages)
    assert fast == "fast"
    assert "[interrupted" in slow
    assert "[interrupted" in third


async def test_passive_loop_finds_no_open_call(tmp_path: Path) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image) as session:
        await session.coordinator.get("context").add_message({"role": "user", "content": "more"})
    messages = agent.messages_in(image)
    assert [m["role"] for m in messages] == ["user", "assistant", *["tool"] * 3, "user"]


async def test_disabled_option_closes_calls_and_journal(
    tmp_path: Path,
) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image, durable=False) as session:
        assert len(outputs(await session.coordinator.get("context").get_messages())) == 3
        assert agent.steps_in(image) == []
        assert await session.resume_turn() == "All done."


async def test_waiting_question_is_asked_again(tmp_path: Path) -> None:
    ran: list[str] = []

    class Killed:
        async def request_approval(self, *args: Any) -> str:
            await anyio.to_thread.run_sync(shutil.copytree, tmp_path / "live", tmp_path / "image")
            return "Deny"

    def ask(event: str, data: dict[str, Any]) -> HookResult:
        if event != "tool:pre":
            return HookResult()
        return HookResult(action="ask_user", approval_prompt="May it?")

    async def run() -> str:
        ran.append("ran")
        return "done"

    tool = Tool("pay", run, repeatable=False)
    script: list[Any] = [[("pay", {})], "No."]
    async with make_session(
        tmp_path / "live", tool, script=script, hook=ask, approvals=Killed()
    ) as session:
        await session.execute("pay")
    assert ran == []
    approvals = MockApprovalSystem(["Allow"])
    async with make_session(tmp_path / "image", tool, hook=ask, approvals=approvals) as session:
        await session.resume_turn()
    assert ran == ["ran"]
    assert outputs(agent.messages_in(tmp_path / "image")) == ["done"]


def test_turn_resumes_after_every_journal_prefix(tmp_path: Path) -> None:
    image = anyio.run(crash_image, tmp_path)
    known = {(step["call"], step["step"]) for step in agent.steps_in(image)}
    [slow, fast, _] = [call["id"] for call in agent.messages_in(image)[-1]["tool_calls"]]
    assert known == {("", "answered"), (slow, "started"), (fast, "finished")}
    prefixes = [
        "DELETE FROM steps",
        "DELETE FROM steps WHERE call != x''",
        f"DELETE FROM steps WHERE CAST(call AS TEXT) = '{fast}'",
        f"DELETE FROM steps WHERE CAST(call AS TEXT) = '{slow}'",
        "SELECT 1",
    ]

    async def resume(root: Path) -> None:
        tools = [Tool(name, nothing, repeatable=True) for name in ("slow", "fast", "third")]
        async with make_session(root, *tools) as session:
            assert agent.transcript_problems(agent.messages_in(root), is_whole=False) == []
            assert await session.resume_turn() == "All done."

    for number, change in enumerate(prefixes):
        for backend in ("asyncio", "trio"):
            root = tmp_path / f"{number}-{backend}"
            shutil.copytree(image, root)
            change_store(root, change)
            is_known = any(step["step"] == "finished" for step in agent.steps_in(root))
            anyio.run(resume, root, backend=backend)
            results = outputs(agent.messages_in(root))
            assert len(results) == 3
            assert results[1] == ("fast" if is_known else "done")
            assert is_known == (number >= 3)


# ── stores that are not as they should be ──


def change_store(root: Path, statement: str) -> None:
    other = sqlite3.connect(root / "store.db", isolation_level=None)
    other.execute(statement)
    other.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE steps SET body = replace(body, 'finished', 'finishes')",
        "UPDATE steps SET checksum = 'x'",
        "UPDATE steps SET body = 7",
        "UPDATE steps SET position = position + 1",
    ],
)
async def test_changed_journal_is_one_clear_error(tmp_path: Path, change: str) -> None:
    image = await crash_image(tmp_path)
    change_store(image, change)
    before = (image / "store.db").read_bytes()
    with pytest.raises(
        StoreDamagedError, match=r"store\.db: a record of the step journal is damaged"
    ):
        async with make_session(image):
            pass
    assert (image / "store.db").read_bytes() == before


async def test_writer_losing_conversation_stops(tmp_path: Path) -> None:
    ran: list[str] = []

    async def meddle() -> str:
        ran.append("ran")
        change_store(tmp_path, "UPDATE sessions SET messages = 1")
        return "done"

    script: list[Any] = [[("work", {})], "All done."]
    with pytest.raises(
        StoreDamagedError,
        match="another process changed the conversation while this session had it",
    ):
        async with make_session(tmp_path, Tool("work", meddle), script=script) as session:
            await session.execute("go")
    assert ran == ["ran"]


# ── disks that are full ──


class Disk:
    """Has no room for the log of a store between `fill` and `free`."""

    def __init__(self, root: Path) -> None:
        self._log = root / "store.db-wal"
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._log.stat().st_size, self._before[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)

    async def free_after_a_refusal(self, step: Step, run: Any) -> Any:
        try:
            return await run()
        except JournalError:
            self.free()
            raise


@pytest.mark.parametrize(
    ("when", "lost"), [("tool:pre", "Tool 'work' was not called"), ("in the tool", "The result of")]
)
async def test_full_disk_leaves_resumable_turn(tmp_path: Path, when: str, lost: str) -> None:
    ran: list[str] = []
    disk = Disk(tmp_path)

    async def run() -> str:
        ran.append("ran")
        if when == "in the tool":
            disk.fill()
        return "done"

    def hook(event: str, data: dict[str, Any]) -> None:
        if event == when:
            disk.fill()

    tool = Tool("work", run, repeatable=False)
    session = make_session(tmp_path, tool, script=[[("work", {})], "All done."], hook=hook)
    session.coordinator.register_step_wrapper(disk.free_after_a_refusal)
    try:
        with pytest.raises(
            JournalError,
            match=rf"store\.db: Input/output error .*{lost}.*the turn ends; resume it once",
        ):
            async with session:
                await session.execute("go")
    finally:
        disk.free()
    effects = 1 if when == "in the tool" else 0
    assert len(ran) == effects
    async with make_session(tmp_path, tool) as session:
        assert await session.resume_turn() == "All done."
    assert len(ran) == effects  # the loop closes the calls of a turn that ends with an error
    messages = agent.messages_in(tmp_path)
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
import anyio
from tests.modules.durable_agent import make_session

async def main(root, backend):
    async with make_session(root) as session:
        await session.execute("go")

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
anyio.run(main, Path(sys.argv[1]), sys.argv[2], backend=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("limit", [25_000, 40_000, 60_000])
def test_file_that_cannot_grow_loses_nothing(tmp_path: Path, backend: str, limit: int) -> None:
    stopped = run_forked(
        [sys.executable, "-c", LIMITED, str(tmp_path), backend, str(limit)], cwd=ROOT, text=True
    )
    assert stopped.returncode == 1
    assert "Input/output error" in stopped.stderr
    known = agent.acknowledged(tmp_path)
    assert anyio.run(agent.run_turn, tmp_path, backend=backend) == "All done."
    messages = agent.messages_in(tmp_path)
    assert agent.transcript_problems(messages, is_whole=True) == []
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert {call: results[call] for call in known} == known


# ── what else ──


async def test_reused_call_id_gets_no_old_result(
    tmp_path: Path,
) -> None:
    class SameIds(agent.ScriptedModel):
        async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
            if sum(message.role == "tool" for message in request.messages) == 2:
                return ChatResponse(content=[TextBlock(text="All done.")])
            return ChatResponse(
                content=[], tool_calls=[ToolCall(id="call_0", name="work", arguments={})]
            )

    ran: list[int] = []

    async def work() -> str:
        ran.append(len(ran))
        return f"run {len(ran)}"

    async def copy_before_the_second(event: str, data: dict[str, Any]) -> HookResult:
        if event == "tool:pre" and len(ran) == 1:
            await anyio.to_thread.run_sync(shutil.copytree, tmp_path / "live", tmp_path / "image")
        return HookResult()

    tool = Tool("work", work, repeatable=True)
    for folder in ("live", "image"):
        hook = copy_before_the_second if folder == "live" else None
        async with make_session(tmp_path / folder, tool, provider=SameIds(), hook=hook) as session:
            await (session.execute("go") if folder == "live" else session.resume_turn())
    assert outputs(agent.messages_in(tmp_path / "image")) == ["run 1", "run 3"]


async def test_non_json_result_is_kept_as_sent(tmp_path: Path) -> None:
    async def odd() -> Any:
        return {1, 2}

    script: list[Any] = [[("work", {})], "All done."]
    async with make_session(tmp_path, Tool("work", odd), script=script) as session:
        assert await session.execute("go") == "All done."


async def test_loop_without_steps_is_not_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Loop:
        async def execute(self, prompt: str, hooks: Any, **kwargs: Any) -> str:
            for number in range(2):
                await hooks.emit(
                    "tool:post", {"tool_name": "x", "tool_call_id": f"c{number}", "result": {}}
                )
            return "answer"

    plan = {
        "session": {
            "orchestrator": Loop(),
            "context": {
                "module": "context-persistent",
                "config": {"path": str(tmp_path), "durable_turns": True},
            },
        }
    }
    async with AmplifierSession(plan) as session:
        assert await session.execute("go") == "answer"
    assert caplog.text.count("not durable") == 1


@pytest.mark.parametrize("mode", MODES)
def test_durable_turn_cancelled_anywhere_stays_valid(tmp_path: Path, mode: Any) -> None:
    numbers = iter(range(100_000))

    def make() -> Any:
        root = tmp_path / str(next(numbers))
        script: list[Any] = [[("work", {}), ("work", {})], "All done."]

        async def run() -> None:
            async with make_session(root, Tool("work", nothing), script=script) as session:
                await session.execute("go")

        def problems() -> list[str]:
            messages = agent.messages_in(root)
            calls = [call["id"] for m in messages for call in m.get("tool_calls") or ()]
            answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
            left = agent.steps_in(root) != []
            return [f"calls {calls}, results {answered}"] * (calls != answered) + [
                "a journal is left"
            ] * left

        return run, problems

    cancel_everywhere(make, modes=[mode], clock="real", max_points=25).raise_if_broken()


# ── when no one can be asked ──


class NoOne:
    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        raise NoOneToAskError("no one is here", keeps_turn=True)


async def ask_about_second(event: str, data: dict[str, Any]) -> HookResult:
    asks = event == "tool:pre" and data["tool_name"] == "second"
    return HookResult(action="ask_user", approval_prompt="Really?") if asks else HookResult()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "names", [["second"], ["first", "second"], ["second", "first"]], ids="-".join
)
async def test_turn_without_answerer_stays_resumable(
    names: list[str], loop: str, tmp_path: Path
) -> None:
    """Nothing is denied and nothing is consumed, however often it is tried; what was done is kept and not done again."""
    done: list[str] = []

    def tool(name: str) -> Tool:
        async def work() -> str:
            done.append(name)
            return f"{name} is done"

        return Tool(name, work, repeatable=True)

    def session(script: list[Any], approvals: Any) -> AmplifierSession:
        tools = (tool("first"), tool("second"))
        return make_session(
            tmp_path, *tools, script=script, loop=loop, hook=ask_about_second, approvals=approvals
        )

    calls = [ToolCall(id=f"call_{name}", name=name, arguments={}) for name in names]
    async with session([ChatResponse(content=[], tool_calls=calls)], NoOne()) as opened:
        with pytest.raises(NoOneToAskError):
            await opened.execute("go")
    for _ in range(2):
        async with session([], NoOne()) as opened:
            with pytest.raises(NoOneToAskError):
                await opened.resume_turn()
    assert "second" not in done
    assert [message["role"] for message in agent.messages_in(tmp_path)][:2] == ["user", "assistant"]
    assert not any(
        message.get("tool_call_id") == "call_second" for message in agent.messages_in(tmp_path)
    )
    async with session(["All done."], MockApprovalSystem(["Allow"])) as opened:
        assert await opened.resume_turn() == "All done."
    messages = agent.messages_in(tmp_path)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        *["tool"] * len(names),
        "assistant",
    ]
    assert [message["content"] for message in messages if message["role"] == "tool"] == [
        f"{name} is done" for name in names
    ]
    assert done.count("second") == 1


async def test_missing_answerer_is_denial_reason(tmp_path: Path) -> None:
    class Nobody:
        async def request_approval(
            self, prompt: str, options: list[str], timeout: float, default: str
        ) -> str:
            raise NoOneToAskError("no one is here")

    calls = [ToolCall(id="call_1", name="second", arguments={})]
    script = [ChatResponse(content=[], tool_calls=calls), "All done."]
    async with make_session(
        tmp_path, Tool("second", nothing), script=script, hook=ask_about_second, approvals=Nobody()
    ) as opened:
        assert await opened.execute("go") == "All done."
    (result,) = [
        message["content"] for message in agent.messages_in(tmp_path) if message["role"] == "tool"
    ]
    assert result == "denied: No one could be asked: Really?"
