"""The instructions of a plan are in force in a conversation that was begun under others."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier import AmplifierSession, HookResult, agent, on
from amplifier.errors import ProviderUnavailableError
from amplifier.testing import MockProvider

pytestmark = pytest.mark.virtual_time

CUT = ProviderUnavailableError("gone", retryable=False)


def seen_by(provider: MockProvider) -> list[tuple[str, Any]]:
    """What the model was shown last."""
    return [(message.role, message.content) for message in provider.requests[-1].messages]


@pytest.fixture(params=["loop-streaming", "loop-events"])
def make(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    def made(provider: MockProvider, instructions: str = "", **options: Any) -> AmplifierSession:
        plan = {"session": {"orchestrator": {"module": request.param}}}
        return agent(
            provider, instructions=instructions, memory=tmp_path / "memory", plan=plan, **options
        )

    return made


async def test_current_instructions_replace_stored_ones(make):
    for at, text in enumerate(["A", "A", "B", "", "C"]):
        provider = MockProvider([f"answer {at}"])
        async with make(provider, text) as session:
            await session.execute(f"prompt {at}")
            history = await session.messages()
        shown = seen_by(provider)
        assert shown[0] == ("system", text or "B")
        assert [role for role, _ in shown] == ["system", *["user", "assistant"] * at, "user"]
        stored = [message["role"] for message in history]
        assert [role for role in stored if role != "system"] == ["user", "assistant"] * (at + 1)
        assert (
            stored.count("system") == [1, 1, 2, 2, 3][at]
        )  # the history keeps what was in force before


async def test_conversation_without_instructions_gets_them(make):
    async with make(MockProvider(["one"])) as session:
        await session.execute("first")
    provider = MockProvider(["two"])
    async with make(provider, "Be brief.") as session:
        await session.execute("second")
    assert seen_by(provider) == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
    ]


async def test_resumed_turn_has_current_instructions(make):
    async with make(MockProvider([("note", {}), CUT]), "A") as session:
        with pytest.raises(ProviderUnavailableError):
            await session.execute("go")
    provider = MockProvider(["Done."])
    async with make(provider, "B") as session:
        assert await session.resume_turn() == "Done."
    shown = seen_by(provider)
    assert shown[0] == ("system", "B")
    assert [role for role, _ in shown] == ["system", "user", "assistant", "tool"]


async def test_early_injection_does_not_hide_instructions(make):
    @on("prompt:submit")
    async def inject(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(
            action="inject_context", context_injection="Monday", context_injection_role="system"
        )

    async with make(MockProvider(["one"]), "A", hooks=[inject]) as session:
        await session.execute("first")
    provider = MockProvider(["two"])
    async with make(provider, "B") as session:
        await session.execute("second")
    systems = [text for role, text in seen_by(provider) if role == "system"]
    assert sorted(systems) == ["B", "Monday"]


@pytest.mark.parametrize("context", ["context-simple", "context-persistent"])
async def test_application_system_message_is_unchanged(make, context):
    provider = MockProvider(["one"])
    session = make(provider, "Of the plan.")
    if context == "context-simple":
        session.config["session"]["context"] = context
    async with session:
        await session.coordinator.get("context").add_message(
            {"role": "system", "content": "Of the application."}
        )
        await session.execute("hi")
    assert seen_by(provider) == [("system", "Of the application."), ("user", "hi")]


async def test_instructions_of_fork_are_separate(make):
    provider = MockProvider(["parent", "child", "again"])
    async with make(provider, "A") as session:
        await session.execute("one")
        section = {"orchestrator": {"config": {"system_prompt": "B"}}, "context": "context-simple"}
        async with session.fork({"session": section}) as child:
            await child.coordinator.get("context").set_messages(await session.messages())
            await child.execute("two")
        assert seen_by(provider)[0] == ("system", "B")
        await session.execute("three")
        assert seen_by(provider)[0] == ("system", "A")
