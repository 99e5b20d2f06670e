"""The step journal: what it keeps, what it refuses, and that a turn can be resumed from every state that it can be in."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import zlib
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
    ModuleLoadError,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.contracts import Step
from amplifier.modules.context_persistent import JournalError, LogDamagedError, LogLockedError, _message_log
from amplifier.testing import MODES, MockApprovalSystem, MockProvider, cancel_everywhere
from tests._support.tree import ROOT
from tests.modules import durable_agent as agent

LOOPS = ["loop-basic", "loop-streaming", "loop-events"]


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
    def mounting(thing: Any) -> Any:
        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            return thing

        return mount

    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register("*", hook or (lambda event, data: None))

    modules = {f"tool-{tool.name}": mounting(tool) for tool in tools}
    modules |= {"provider-scripted": mounting(provider or MockProvider(script or ["All done."]))}
    modules["hooks-test"] = mount_hook
    config = {"path": str(root), "durable_turns": durable}
    plan = {
        "session": {"orchestrator": loop, "context": {"module": "context-persistent", "config": config}},
        "providers": ["provider-scripted"],
        "tools": [f"tool-{tool.name}" for tool in tools],
        "hooks": ["hooks-test"],
    }
    return AmplifierSession(plan, ModuleLoader(modules=modules), session_id=agent.SESSION, approval_system=approvals)


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
    session.coordinator.register_step_wrapper(note)  # before the context's, so it sees what that has recorded
    async with session:
        await session.execute("go")
    return image


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_result_that_waits_for_another_is_kept_and_a_call_that_never_began_runs(
    tmp_path: Path, loop: str
) -> None:
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
    assert sorted(os.listdir(image / agent.SESSION)) == ["lock", "messages.log"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_turn_goes_on_with_the_type_that_it_is_given(tmp_path: Path, loop: str) -> None:
    image = await crash_image(tmp_path, loop)
    async with make_session(image, script=[("final_result", {"result": 3})], loop=loop) as session:
        assert await session.resume_turn(result_type=int) == 3
    assert "there is no tool named 'final_result'" not in str(agent.messages_in(image))


async def test_a_new_prompt_gives_the_turn_up_and_keeps_what_is_known(tmp_path: Path) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image, script=["Fine."]) as session:
        assert await session.execute("something else") == "Fine."
    messages = agent.messages_in(image)
    assert [m["role"] for m in messages] == ["user", "assistant", *["tool"] * 3, "assistant", "user", "assistant"]
    slow, fast, third = outputs(messages)
    assert fast == "fast"
    assert "[interrupted" in slow
    assert "[interrupted" in third


async def test_a_loop_that_closes_nothing_finds_no_call_without_a_result(tmp_path: Path) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image) as session:
        await session.coordinator.get("context").add_message({"role": "user", "content": "more"})
    messages = agent.messages_in(image)
    assert [m["role"] for m in messages] == ["user", "assistant", *["tool"] * 3, "user"]


async def test_without_the_option_open_calls_are_closed_and_the_journal_goes(tmp_path: Path) -> None:
    image = await crash_image(tmp_path)
    async with make_session(image, durable=False) as session:
        assert len(outputs(await session.coordinator.get("context").get_messages())) == 3
        assert not (image / agent.SESSION / "steps.log").exists()
        assert await session.resume_turn() == "All done."


async def test_a_question_that_waited_for_an_answer_is_asked_again(tmp_path: Path) -> None:
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
    async with make_session(tmp_path / "live", tool, script=script, hook=ask, approvals=Killed()) as session:
        await session.execute("pay")
    assert ran == []
    approvals = MockApprovalSystem(["Allow"])
    async with make_session(tmp_path / "image", tool, hook=ask, approvals=approvals) as session:
        await session.resume_turn()
    assert ran == ["ran"]
    assert outputs(agent.messages_in(tmp_path / "image")) == ["done"]


def test_a_turn_can_be_resumed_after_every_prefix_of_the_journal(tmp_path: Path) -> None:
    image = anyio.run(crash_image, tmp_path)
    journal = (image / agent.SESSION / "steps.log").read_bytes()
    assert [record["step"] for record in agent.records(image / agent.SESSION / "steps.log")] == [
        "answered",
        "started",
        "started",
        "finished",
    ]
    first = journal.index(b"\n") + 1
    ends = {first, len(journal), *range(first, len(journal), 61)}
    ends |= {position + 1 for position in range(first, len(journal)) if journal[position : position + 1] == b"\n"}

    async def resume(root: Path) -> None:
        tools = [Tool(name, nothing, repeatable=True) for name in ("slow", "fast", "third")]
        async with make_session(root, *tools) as session:
            assert agent.transcript_problems(agent.messages_in(root), is_whole=False) == []
            assert await session.resume_turn() == "All done."

    for end in sorted(ends):
        for backend in ("asyncio", "trio"):
            root = tmp_path / f"{end}-{backend}"
            shutil.copytree(image, root)
            (root / agent.SESSION / "steps.log").write_bytes(journal[:end])
            anyio.run(resume, root, backend=backend)
            results = outputs(agent.messages_in(root))
            assert len(results) == 3
            assert results[1] == ("fast" if end == len(journal) else "done")


# ── files that are not as they should be ──


def line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            line({"format": "amplifier-steps", "version": 2, "session_id": "s", "generation": 1}),
            r"steps.log, line 1: it is written in version 2 of the format, expected 1 \(a newer release wrote it\)",
        ),
        (line({"format": "other", "version": 1}), "steps.log, line 1: this is not the beginning of a step journal"),
        (b"rubbish\n", "steps.log, line 1: this is not the beginning of a step journal"),
        (
            line({"format": "amplifier-steps", "version": 1, "session_id": "s", "generation": 1}) + line({"a": 1}),
            "steps.log, line 2: the record is none of this file: it has no step",
        ),
    ],
)
async def test_a_journal_of_another_format_is_one_clear_error(tmp_path: Path, content: bytes, problem: str) -> None:
    image = await crash_image(tmp_path)
    before = (image / agent.SESSION / "messages.log").read_bytes()
    (image / agent.SESSION / "steps.log").write_bytes(content)
    with pytest.raises(ModuleLoadError) as caught:
        async with make_session(image):
            pass
    with pytest.raises(LogDamagedError, match=problem):
        raise caught.value.__cause__ or caught.value
    assert (image / agent.SESSION / "messages.log").read_bytes() == before
    assert (image / agent.SESSION / "steps.log").read_bytes() == content


async def test_records_of_a_writer_that_had_lost_the_conversation_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image = await crash_image(tmp_path)
    journal = image / agent.SESSION / "steps.log"
    *_, finished = agent.records(journal)
    assert (finished["step"], finished["writer"]) == ("finished", 1)
    newer = {**finished, "step": "started", "writer": 2}
    forged = {**finished, "result": {"success": True, "output": "of the older writer"}}
    journal.write_bytes(journal.read_bytes() + line(newer) + line(forged))
    tools = [Tool(name, nothing, repeatable=True) for name in ("slow", "fast", "third")]
    async with make_session(image, *tools) as session:
        await session.resume_turn()
    assert outputs(agent.messages_in(image)) == ["done", "done", "done"]
    assert "1 records of a process that had lost the conversation are ignored" in caplog.text


async def test_a_second_writer_is_refused_and_told_who_is_the_first(tmp_path: Path) -> None:
    async with make_session(tmp_path):
        with pytest.raises(ModuleLoadError) as caught:
            async with make_session(tmp_path):
                pass
    with pytest.raises(LogLockedError, match=f"another session has this conversation open .process {os.getpid()} on "):
        raise caught.value.__cause__ or caught.value
    assert (tmp_path / agent.SESSION / "lock").read_bytes() == b""


async def test_a_writer_that_lost_the_journal_to_another_stops(tmp_path: Path) -> None:
    ran: list[str] = []
    journal = tmp_path / agent.SESSION / "steps.log"

    async def meddle() -> str:
        ran.append("ran")
        with journal.open("ab") as file:
            file.write(line({"step": "started", "writer": 9}))
        return "done"

    script: list[Any] = [[("work", {})], "All done."]
    with pytest.raises(LogDamagedError, match="another process changed it while this session had it open"):
        async with make_session(tmp_path, Tool("work", meddle), script=script) as session:
            await session.execute("go")
    assert ran == ["ran"]


# ── disks that are full ──


class Full:
    """The system, with a disk that takes nothing more after some writes to the journal."""

    def __init__(self, after: int) -> None:
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: Any) -> int:
        if b'"step"' in bytes(data):
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data)


@pytest.mark.parametrize(
    ("writes", "lost", "effects"), [(0, "the answer of", 0), (1, "was not called", 0), (2, "the result of", 1)]
)
async def test_a_full_disk_ends_the_turn_with_a_clear_error_and_it_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, lost: str, effects: int
) -> None:
    ran: list[str] = []

    async def run() -> str:
        ran.append("ran")
        return "done"

    tool = Tool("work", run, repeatable=False)
    monkeypatch.setattr(_message_log, "os", Full(writes))
    script: list[Any] = [[("work", {})], "All done."]
    with pytest.raises(JournalError, match=rf"steps.log: No space left on device, so .*{lost}.*then resume the turn"):
        async with make_session(tmp_path, tool, script=script) as session:
            await session.execute("go")
    assert len(ran) == effects
    monkeypatch.undo()
    async with make_session(tmp_path, tool, script=[[("work", {})], "All done."] if writes == 0 else None) as session:
        assert await session.resume_turn() == "All done."
    assert len(ran) == 1 if effects or writes == 0 else len(ran) == 0
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
@pytest.mark.parametrize("limit", [400, 900, 1500])
def test_a_file_that_may_not_grow_loses_nothing(tmp_path: Path, backend: str, limit: int) -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), backend, str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert stopped.returncode == 1
    assert "File too large" in stopped.stderr
    known = agent.acknowledged(tmp_path)
    assert anyio.run(agent.run_turn, tmp_path, backend=backend) == "All done."
    messages = agent.messages_in(tmp_path)
    assert agent.transcript_problems(messages, is_whole=True) == []
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert {call: results[call] for call in known} == known


# ── what else ──


async def test_an_id_that_a_provider_uses_again_does_not_get_the_result_of_an_earlier_answer(tmp_path: Path) -> None:
    class SameIds:
        name = "same-ids"

        def __init__(self) -> None:
            plain = MockProvider(["unused"])
            self.get_info, self.list_models = plain.get_info, plain.list_models

        async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
            if sum(message.role == "tool" for message in request.messages) == 2:
                return ChatResponse(content=[TextBlock(text="All done.")])
            return ChatResponse(content=[], tool_calls=[ToolCall(id="call_0", name="work", arguments={})])

        def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
            return response.tool_calls or []

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


def _mounting(thing: Any) -> Any:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        return thing

    return mount


async def test_a_result_that_has_no_json_form_is_kept_as_the_model_gets_it(tmp_path: Path) -> None:
    async def odd() -> Any:
        return {1, 2}

    script: list[Any] = [[("work", {})], "All done."]
    async with make_session(tmp_path, Tool("work", odd), script=script) as session:
        assert await session.execute("go") == "All done."


async def test_a_loop_without_steps_works_and_is_reported_as_not_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Loop:
        async def execute(self, prompt: str, hooks: Any, **kwargs: Any) -> str:
            for number in range(2):
                await hooks.emit("tool:post", {"tool_name": "x", "tool_call_id": f"c{number}", "result": {}})
            return "answer"

    plan = {
        "session": {
            "orchestrator": "loop-own",
            "context": {"module": "context-persistent", "config": {"path": str(tmp_path), "durable_turns": True}},
        }
    }
    async with AmplifierSession(plan, ModuleLoader(modules={"loop-own": _mounting(Loop())})) as session:
        assert await session.execute("go") == "answer"
    assert caplog.text.count("not durable") == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_durable_turn_that_is_cancelled_anywhere_leaves_a_valid_transcript(tmp_path: Path, mode: Any) -> None:
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
            left = (root / agent.SESSION / "steps.log").exists()
            return [f"calls {calls}, results {answered}"] * (calls != answered) + ["a journal is left"] * left

        return run, problems

    report = cancel_everywhere(make, modes=[mode], clock="real", max_points=25)
    report.raise_if_broken()
    assert report.ok
