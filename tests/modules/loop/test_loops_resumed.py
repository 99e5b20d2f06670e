"""A turn that was cut off goes on without a new prompt: what is known is kept, and no call runs twice without permission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import (
    AmplifierSession,
    HookResult,
    ModuleLoader,
    SessionStateError,
    ToolResult,
)
from amplifier.contracts import Step, current_call
from amplifier.errors import ExecutionCancelled, NoUnfinishedTurnError
from amplifier.modules.loop._messages import unfinished_turn
from amplifier.testing import MODES, MockApprovalSystem, MockProvider, cancel_everywhere


class Work:
    """A tool that lists the inputs it was called with."""

    description = "Works."

    def __init__(self, name: str, done: list[str], **attributes: Any) -> None:
        self.name = name
        self._done = done
        for key, value in attributes.items():
            setattr(self, key, value)

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        call = current_call()
        assert call is not None
        self._done.append(f"{self.name}:{call.call_id}:{call.turn_number}/{call.iteration}")
        await anyio.lowlevel.checkpoint()
        return ToolResult(output=f"{self.name} done")


def asked(*calls: tuple[str, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": call_id, "name": name, "arguments": {"n": call_id}} for call_id, name in calls
        ],
    }


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "x", "content": text}


PROMPT = {"role": "user", "content": "go"}


def make_session(
    stored: list[dict[str, Any]],
    *tools: Work,
    script: list[Any] | None = None,
    loop: str = "loop-basic",
    wrapper: Any = None,
    approvals: Any = None,
    on_event: Callable[[str, dict[str, Any]], Any] | None = None,
) -> AmplifierSession:
    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.get("context").set_messages(stored)
        if wrapper is not None:
            coordinator.register_step_wrapper(wrapper)
        if on_event is not None:
            coordinator.hooks.register("*", on_event)

    plan = {
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": [MockProvider(script or ["All done."])],
        "tools": [*tools],
        "hooks": ["hooks-test"],
    }
    loader = ModuleLoader(modules={"hooks-test": mount_hook})
    return AmplifierSession(plan, loader, session_id="s", approval_system=approvals)


def outputs(messages: list[dict[str, Any]]) -> dict[str, str]:
    return {m["tool_call_id"]: m["content"] for m in messages if m.get("role") == "tool"}


async def messages_of(session: AmplifierSession) -> list[dict[str, Any]]:
    return await session.coordinator.get("context").get_messages()


async def test_unanswered_turn_continues_with_model(loop: str) -> None:
    for stored in ([PROMPT], [PROMPT, asked(("a", "work")), result("a", "known")]):
        async with make_session(stored, loop=loop) as session:
            assert await session.resume_turn() == "All done."
            assert [m["role"] for m in await messages_of(session)] == [
                *(m["role"] for m in stored),
                "assistant",
            ]
            assert session.coordinator.turn_number == 1


async def test_resume_runs_open_calls_as_declared(
    loop: str,
) -> None:
    """Finished calls keep their results."""
    done: list[str] = []
    events: list[tuple[str, dict[str, Any]]] = []
    stored = [
        PROMPT,
        asked(("a", "again"), ("b", "once"), ("c", "again"), ("d", "gone")),
        result("a", "known"),
    ]
    tools = (Work("again", done, repeatable=True), Work("once", done, repeatable=False))
    async with make_session(
        stored, *tools, loop=loop, on_event=lambda event, data: events.append((event, data))
    ) as session:
        assert await session.resume_turn() == "All done."
        found = await messages_of(session)
    assert done == ["again:c:1/1"]
    assert [m.get("tool_call_id") for m in found if m["role"] == "tool"] == ["a", "b", "c", "d"]
    assert (outputs(found)["a"], outputs(found)["c"]) == ("known", "again done")
    assert "declared as not repeatable" in outputs(found)["b"]
    assert "there is no tool named 'gone' any more" in outputs(found)["d"]
    names = [event for event, _ in events]
    assert names.index("execution:start") < names.index("tool:pre") < names.index("turn:resumed")
    assert "prompt:submit" not in names
    report = dict(events)["turn:resumed"]
    shown = [(call["tool_call_id"], call["outcome"]) for call in report["calls"]]
    assert shown == [("b", "interrupted"), ("c", "repeated"), ("d", "interrupted")]


@pytest.mark.parametrize(
    ("answer", "expected"), [("Allow", "work done"), ("Deny", "it was not approved")]
)
async def test_undeclared_tool_needs_approval(answer: str, expected: str) -> None:
    done: list[str] = []
    approvals = MockApprovalSystem([answer])
    stored = [PROMPT, asked(("a", "work"))]
    async with make_session(stored, Work("work", done), approvals=approvals) as session:
        await session.resume_turn()
        assert expected in outputs(await messages_of(session))["a"]
    assert len(done) == (answer == "Allow")


@pytest.mark.parametrize(
    ("declared", "log"),
    [({}, ""), ({"repeatable": "yes"}, "repeatable is 'yes'; expected True, False or None")],
)
async def test_undecidable_call_does_not_run_again(
    caplog: pytest.LogCaptureFixture, declared: dict[str, Any], log: str
) -> None:
    """Nobody can be asked, or the declaration is not a bool."""
    done: list[str] = []
    async with make_session(
        [PROMPT, asked(("a", "work"))], Work("work", done, **declared)
    ) as session:
        await session.resume_turn()
        assert "[interrupted" in outputs(await messages_of(session))["a"]
    assert done == []
    assert log in caplog.text


async def test_gate_decides_about_repeated_call() -> None:
    done: list[str] = []

    def gate(event: str, data: dict[str, Any]) -> HookResult:
        return (
            HookResult(action="deny", reason="not today") if event == "tool:pre" else HookResult()
        )

    stored = [PROMPT, asked(("a", "work"))]
    async with make_session(stored, Work("work", done, repeatable=True), on_event=gate) as session:
        await session.resume_turn()
        assert "denied: not today" in outputs(await messages_of(session))["a"]
    assert done == []


async def test_wrapper_provides_results() -> None:
    """It can tell which calls were never started."""
    done: list[str] = []
    reports: list[dict[str, Any]] = []

    async def wrapper(step: Step, run: Any) -> Any:
        assert step.is_resumed == (step.kind == "tool")
        if step.call.call_id == "a":
            return ToolResult(output="from the journal")
        if step.call.call_id == "b":
            step.was_started = False
        return await run()

    stored = [PROMPT, asked(("a", "work"), ("b", "work"), ("c", "work"))]
    async with make_session(
        stored,
        Work("work", done, repeatable=False),
        wrapper=wrapper,
        on_event=lambda event, data: reports.append(data) if event == "turn:resumed" else None,
    ) as session:
        await session.resume_turn()
        found = outputs(await messages_of(session))
    assert done == ["work:b:1/1"]
    assert (found["a"], found["b"]) == ("from the journal", "work done")
    assert "[interrupted" in found["c"]
    assert [call["outcome"] for call in reports[0]["calls"]] == ["kept", "started", "interrupted"]


async def test_stopped_resumed_call_may_have_effect(
    loop: str,
) -> None:
    done: list[str] = []
    session = make_session(
        [PROMPT, asked(("a", "again"))], Work("again", done, repeatable=True), loop=loop
    )
    async with session:
        session.coordinator.cancellation.request_graceful()
        await session.resume_turn()
        text = outputs(await messages_of(session))["a"]
    assert "the turn is being stopped; whether it had an effect is not known" in text
    assert done == []


async def test_call_stopped_during_approval_is_not_started(
    loop: str,
) -> None:
    done: list[str] = []
    is_asked = anyio.Event()

    class Silent:
        async def request_approval(
            self, prompt: str, options: list[str], timeout: float, default: str
        ) -> str:
            is_asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    async def gate(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="ask_user", approval_prompt="May I?")

    session = make_session(
        [], Work("work", done), script=[[("work", {})]], loop=loop, approvals=Silent()
    )
    async with session, anyio.create_task_group() as group:
        session.coordinator.hooks.register("tool:pre", gate)

        async def stop() -> None:
            await is_asked.wait()
            session.coordinator.cancellation.request_immediate()

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
        [text] = outputs(await messages_of(session)).values()
    assert text == "not started: the turn is being stopped"
    assert done == []


async def test_answered_or_empty_conversation_is_not_resumable() -> None:
    for stored in (
        [],
        [{"role": "system", "content": "Be brief."}],
        [PROMPT, {"role": "assistant", "content": "Hi."}],
    ):
        async with make_session(stored) as session:
            with pytest.raises(
                NoUnfinishedTurnError, match=r"there is no turn to resume.*execute\(prompt\)"
            ):
                await session.resume_turn()
            assert await messages_of(session) == stored
            assert await session.execute("go") == "All done."


async def test_failed_turn_resumes_in_same_session() -> None:
    done: list[str] = []
    script = [[("work", {})], RuntimeError("the network is down"), "All done."]
    async with make_session([], Work("work", done), script=script) as session:
        with pytest.raises(RuntimeError, match="the network is down"):
            await session.execute("go")
        assert await session.resume_turn() == "All done."
        assert session.coordinator.turn_number == 1
    assert len(done) == 1


async def test_iteration_count_continues_after_resume() -> None:
    numbers: list[tuple[int, int]] = []

    async def wrapper(step: Step, run: Any) -> Any:
        numbers.append((step.call.turn_number, step.call.iteration))
        return await run()

    stored = [
        PROMPT,
        asked(("a", "work")),
        result("a", "1"),
        asked(("b", "work")),
        result("b", "2"),
    ]
    async with make_session(stored, wrapper=wrapper) as session:
        await session.resume_turn()
    assert numbers == [(1, 3)]


async def test_orchestrator_without_resume_is_refused() -> None:
    class Loop:
        async def execute(self, prompt: str, **kwargs: Any) -> str:
            return "answer"

    async with AmplifierSession(
        {"session": {"orchestrator": Loop(), "context": "context-simple"}}
    ) as session:
        with pytest.raises(
            SessionStateError,
            match="orchestrator Loop cannot resume a turn: it has no method `resume`",
        ):
            await session.resume_turn()
        assert await session.execute("go") == "answer"


async def test_parallel_results_are_stored_in_call_order() -> None:
    stored_before_the_last: list[Any] = []
    gates = {name: anyio.Event() for name in ("a", "b", "c")}

    class Waiting(Work):
        async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
            await gates[self.name].wait()
            return ToolResult(output=self.name)

    tools = [Waiting(name, []) for name in gates]
    script: list[Any] = [[("a", {}), ("b", {}), ("c", {})], "done"]
    async with make_session([], *tools, script=script) as session:

        async def stored() -> list[str]:
            await anyio.wait_all_tasks_blocked()
            return list(outputs(await messages_of(session)).values())

        async with anyio.create_task_group() as group:
            group.start_soon(session.execute, "go")
            assert await stored() == []
            gates["b"].set()
            assert await stored() == []  # in call order: the first one is missing
            gates["a"].set()
            assert await stored() == ["a", "b"]
            gates["c"].set()
        stored_before_the_last.append(await stored())
    assert stored_before_the_last == [["a", "b", "c"]]


@pytest.mark.parametrize("mode", MODES)
def test_resume_cancelled_anywhere_keeps_valid_transcript(mode: Any) -> None:
    def make() -> Any:
        done: list[str] = []
        found: list[dict[str, Any]] = []
        stored = [PROMPT, asked(("a", "work"), ("b", "work")), result("a", "known")]

        async def run() -> None:
            session = make_session(
                stored, Work("work", done, repeatable=True), script=[[("work", {})], "done"]
            )
            async with session:
                try:
                    await session.resume_turn()
                finally:
                    found.extend(session.coordinator.get("context")._conversation.copy())

        def problems() -> list[str]:
            calls = [call["id"] for m in found for call in m.get("tool_calls") or ()]
            answered = [m["tool_call_id"] for m in found if m["role"] == "tool"]
            return [] if calls == answered or not found else [f"calls {calls}, results {answered}"]

        return run, problems

    cancel_everywhere(make, modes=[mode]).raise_if_broken()


def test_interruption_point_of_turn() -> None:
    aside = {"role": "user", "content": "hint", "metadata": {"source": "hook"}}
    unfinished = unfinished_turn(
        [PROMPT, asked(("a", "work"), ("b", "x")), result("a", "known"), aside]
    )
    assert unfinished is not None
    assert (unfinished.prompt, unfinished.iterations) == ("go", 1)
    assert [(call.id, call.name, call.arguments) for call in unfinished.calls] == [
        ("b", "x", {"n": "b"})
    ]
    assert unfinished_turn([PROMPT, {"role": "assistant", "content": "Hi."}, aside]) is None
