"""Injections: cleaned, measured, stored with their provenance as a batch; ephemeral ones are handed back."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import HookResult, ModuleCoordinator
from amplifier.kernel.hooks.merge import sanitised_injections
from amplifier.models import ContextInjection
from tests._support.small_agent import Memory


class Limits:
    """What a coordinator needs to know of a session."""

    def __init__(self, **limits):
        self.session_id, self.parent_id = "s", None
        self.config = {"session": limits}


def made(**limits):
    coordinator = ModuleCoordinator(Limits(**limits))
    memory = Memory()
    coordinator.mount_points["context"] = memory
    return coordinator, memory


def one(text, **changes):
    return HookResult(action="inject_context", context_injection=text, **changes)


def many(*items, **changes):
    return HookResult(action="inject_context", context_injections=list(items), **changes)


async def inject(coordinator, result):
    return await coordinator.process_hook_result(result, "tool:post", "hooks-lint")


# ── storing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
async def test_injection_is_stored_with_role_and_origin(role, caplog):
    caplog.set_level(logging.INFO)
    coordinator, memory = made()
    result = await inject(coordinator, one("Look out", context_injection_role=role, data={"k": 1}))
    [message] = memory.messages
    assert datetime.fromisoformat(message["metadata"].pop("timestamp")).tzinfo is not None
    assert message == {
        "role": role,
        "content": "Look out",
        "metadata": {
            "source": "hook",
            "hook_name": "hooks-lint",
            "event": "tool:post",
            "requested_role": role,
            "ephemeral": False,
            "persisted": True,
        },
    }
    assert (result.action, result.context_injection, result.context_injections) == (
        "continue",
        None,
        [],
    )
    assert result.data == {"k": 1}
    assert "hook 'hooks-lint' injects 8 characters" in caplog.text


async def test_injection_list_beats_scalar():
    """Its items keep their order and their own provenance."""
    coordinator, memory = made()
    await inject(
        coordinator,
        many(
            ContextInjection(content="a", hook_name="first", event="tool:pre"),
            ContextInjection(content="b", role="user"),
            context_injection="not this",
        ),
    )
    assert [
        (m["content"], m["role"], m["metadata"]["hook_name"], m["metadata"]["event"])
        for m in memory.messages
    ] == [
        ("a", "system", "first", "tool:pre"),
        ("b", "user", "unknown", ""),
    ]


async def test_ephemeral_injections_are_returned_not_stored():
    coordinator, memory = made()
    result = await inject(
        coordinator,
        many(
            ContextInjection(content="keep"),
            ContextInjection(content="on\x00ce", ephemeral=True, role="user"),
            ContextInjection(content="again", ephemeral=True, append_to_last_tool_result=True),
        ),
    )
    assert [message["content"] for message in memory.messages] == ["keep"]
    assert result.action == "inject_context"
    assert [item.content for item in result.context_injections] == ["once", "again"]
    assert result.context_injection == "once\n\nagain"
    assert (result.context_injection_role, result.ephemeral) == ("user", True)
    assert result.append_to_last_tool_result


@pytest.mark.parametrize(
    "result", [one(""), one("\x00\x07"), one(None), many(ContextInjection(content="\x1b"))]
)
async def test_empty_injection_is_continue(result):
    coordinator, memory = made(injection_size_limit=0)
    assert (await inject(coordinator, result)).action == "continue"
    assert memory.messages == []
    assert coordinator._current_turn_injections == 0


async def test_sync_context_is_served_too():
    messages = []

    class Sync:
        def add_message(self, message):
            messages.append(message)

    coordinator, _ = made()
    coordinator.mount("context", Sync())
    await inject(coordinator, one("text"))
    assert messages[0]["content"] == "text"


@pytest.mark.parametrize("context", [None, object()], ids=["no context", "no add_message"])
async def test_unstorable_injection_is_charged_and_dropped(context):
    coordinator, _ = made()
    coordinator.mount("context", context)
    result = await inject(
        coordinator,
        many(
            ContextInjection(content="12345678"), ContextInjection(content="1234", ephemeral=True)
        ),
    )
    assert [item.content for item in result.context_injections] == ["1234"]
    assert coordinator._current_turn_injections == 3


async def test_context_error_reaches_orchestrator():
    class Broken:
        async def add_message(self, message):
            raise OSError("disk full")

    coordinator, _ = made()
    coordinator.mount("context", Broken())
    with pytest.raises(OSError, match="disk full"):
        await inject(coordinator, one("text"))


# ── cleaning ─────────────────────────────────────────────────────────────────────────────────────


@given(st.text())
def test_cleaned_text_has_no_control_characters(text):
    def is_kept(character):
        code = ord(character)
        return character in "\t\n\r" or not (
            code < 32 or 127 <= code <= 159 or 0xD800 <= code <= 0xDFFF
        )

    items = sanitised_injections(one(text), "e", "h")
    assert "".join(item.content for item in items) == "".join(filter(is_kept, text))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


async def test_limit_of_zero_is_limit():
    coordinator, _ = made(injection_size_limit=0)
    with pytest.raises(ValueError, match="exceeds 0 characters"):
        await inject(coordinator, one("x"))


async def test_limits_are_read_live(caplog):
    coordinator, memory = made()
    assert (coordinator.injection_size_limit, coordinator.injection_budget_per_turn) == (None, None)
    await inject(coordinator, one("x" * 100_000))
    coordinator.config["session"].update(injection_size_limit=3, injection_budget_per_turn=0)
    assert (coordinator.injection_size_limit, coordinator.injection_budget_per_turn) == (3, 0)
    with pytest.raises(ValueError, match="exceeds 3"):
        await inject(coordinator, one("xxxx"))
    assert len(memory.messages) == 1
