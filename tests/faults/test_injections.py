"""Faults F60–F62: how much hooks may put into the context."""

from __future__ import annotations

import pytest

from amplifier import HookResult
from amplifier.models import ContextInjection
from tests._support.small_agent import agent


def injecting(text):
    return HookResult(action="inject_context", context_injection=text)


async def stored_by(result, **limits):
    async with agent(session=limits) as session:
        await session.coordinator.process_hook_result(result, "x", "hook")
        return [message["content"] for message in session.coordinator.get("context").messages]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("x" * 9, "x" * 9),
        ("x" * 10, "x" * 10),
        ("\U0001f600" * 10, "\U0001f600" * 10),
        ("x" * 10 + "\x00\x07\x1b", "x" * 10),
        ("x" * 10 + "\ud800", "x" * 10),
        ("a\tb\nc", "a\tb\nc"),
    ],
)
async def test_f60_injection_at_limit_is_stored(text, stored):
    """Characters are counted after control characters and lone surrogates were taken out."""
    assert await stored_by(injecting(text), injection_size_limit=10) == [stored]


@pytest.mark.parametrize("text", ["x" * 11, "\U0001f600" * 11, "x" * 11 + "\x00"])
async def test_f60_injection_over_limit_is_refused(text):
    async with agent(session={"injection_size_limit": 10}) as session:
        with pytest.raises(
            ValueError, match=r"exceeds 10 characters: hook 'hook' injects 11 on 'x'"
        ):
            await session.coordinator.process_hook_result(injecting(text), "x", "hook")
        assert session.coordinator.get("context").messages == []


async def test_f61_batch_is_stored_entirely_or_refused():
    """Every item of a list is held to the limit."""
    items = [ContextInjection(content="fine"), ContextInjection(content="x" * 11, ephemeral=True)]
    async with agent(session={"injection_size_limit": 10}) as session:
        with pytest.raises(ValueError, match="exceeds 10 characters"):
            await session.coordinator.process_hook_result(HookResult(context_injections=items), "x")
        assert session.coordinator.get("context").messages == []
        assert session.coordinator._current_turn_injections == 0


async def test_f61_turn_budget_warns_only(caplog):
    """Soft, as in the seeds: a turn is not lost because a hook was talkative."""
    assert await stored_by(injecting("x" * 400), injection_budget_per_turn=99) == ["x" * 400]
    assert "over session.injection_budget_per_turn = 99" in caplog.text
    caplog.clear()
    assert await stored_by(injecting("x" * 400), injection_budget_per_turn=100) == ["x" * 400]
    assert "budget" not in caplog.text


async def test_f62_injections_of_hooks_are_measured_separately():
    async with agent(
        session={"injection_size_limit": 10, "injection_budget_per_turn": 100}
    ) as session:
        hooks = session.coordinator.hooks
        hooks.register("x", lambda event, data: injecting("a" * 8), name="one")
        second = HookResult(
            action="inject_context", context_injection="b" * 8, context_injection_role="user"
        )
        hooks.register("x", lambda event, data: second, name="two")
        merged = await hooks.emit("x", {})
        await session.coordinator.process_hook_result(merged, "x")
        stored = session.coordinator.get("context").messages
        assert [(m["role"], m["content"], m["metadata"]["hook_name"]) for m in stored] == [
            ("system", "a" * 8, "one"),
            ("user", "b" * 8, "two"),
        ]
        assert session.coordinator._current_turn_injections == 4
