"""Faults F40–F46: contributors, displays, plans and tool results that are not what one hopes for."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import anyio
import pytest

from amplifier import HookResult, ToolResult
from tests._support.small_agent import agent, give_up_after, heard, takes
from tests.faults.test_dispatch import NOT_JSON
from tests.internal.test_json import circular, nested

pytestmark = pytest.mark.virtual_time


async def hang():
    await anyio.sleep_forever()


# ── F40–F42: contributors ────────────────────────────────────────────────────────────────────────


async def test_f40_hanging_contributor_is_skipped_by_name(caplog):
    """A list cannot express that it is partial, and the seeds return a list: the log names what is missing."""
    async with agent() as session:
        coordinator = session.coordinator
        coordinator.register_contributor("c", "first", lambda: 1)
        coordinator.register_contributor("c", "sleeper", hang)
        coordinator.register_contributor("c", "last", lambda: 3)
        with takes(10):
            assert await coordinator.collect_contributions("c") == [1, 3]
    assert "Contributor 'sleeper' on channel 'c' was skipped: no answer within 10 s" in caplog.text


async def test_f40_whole_collection_is_bounded():
    async with agent() as session:
        for number in range(50):
            session.coordinator.register_contributor("c", f"sleeper {number}", hang)
        session.coordinator.register_contributor("c", "quick", lambda: "here")
        with takes(30):
            assert await session.coordinator.collect_contributions("c") == ["here"]


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f41_cancelled_collection_is_cancelled(how):
    log: list[Any] = []
    async with agent() as session:
        session.coordinator.register_contributor("c", "first", lambda: 1)
        session.coordinator.register_contributor("c", "sleeper", hang)
        session.coordinator.register_contributor(
            "c", "last", lambda: log.append("the next contributor was asked")
        )

        async def collect():
            log.append(await session.coordinator.collect_contributions("c"))

        await give_up_after(1, how, collect)
    assert log == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    "exception", [ValueError("broke"), asyncio.CancelledError()], ids=["error", "cancelled"]
)
async def test_f42_only_raising_contributor_is_skipped(exception, is_async, caplog):
    def fail():
        raise exception

    async def fail_later():
        raise exception

    async with agent() as session:
        session.coordinator.register_contributor("c", "first", lambda: 1)
        session.coordinator.register_contributor("c", "broken", fail_later if is_async else fail)
        session.coordinator.register_contributor("c", "last", lambda: 3)
        assert await session.coordinator.collect_contributions("c") == [1, 3]
    assert "'broken'" in caplog.text


@pytest.mark.parametrize("exception", [KeyboardInterrupt()], ids=["interrupt"])
async def test_f42_interrupt_is_not_contributor_failure(exception):
    """As from hooks: it is addressed to the process, so it propagates."""

    async def fail():
        raise exception

    async with agent() as session:
        session.coordinator.register_contributor("c", "broken", fail)
        with pytest.raises(type(exception)):
            await session.coordinator.collect_contributions("c")


# ── F43: the display ─────────────────────────────────────────────────────────────────────────────


async def test_f43_display_may_use_coordinator():
    shown: list[Any] = []

    class Display:
        async def show_message(self, message, level, source="hook"):
            coordinator = session.coordinator
            coordinator.register_capability("shown", message)
            await coordinator.hooks.emit("display:shown", {"message": message})
            again = HookResult(user_message="inner") if message == "outer" else HookResult()
            await coordinator.process_hook_result(again, "x")
            shown.append(
                (message, coordinator.get_capability("shown"), coordinator.to_dict()["has_context"])
            )

    async with agent(display_system=Display()) as session:
        events = heard(session, "display:shown")
        await session.coordinator.process_hook_result(HookResult(user_message="outer"), "x")
    assert shown == [("inner", "inner", True), ("outer", "inner", True)]
    assert len(events) == 2


async def test_f43_failing_display_costs_message_only(caplog):
    class Display:
        async def show_message(self, message, level, source="hook"):
            if message == "hang":
                await anyio.sleep_forever()
            raise OSError("no terminal")

    async with agent(display_system=Display(), session={"deadlines": {"hook": 4}}) as session:
        for text, seconds in (("hang", 4), ("raise", 0)):
            with takes(seconds):
                result = await session.coordinator.process_hook_result(
                    HookResult(user_message=text), "x"
                )
                assert result.action == "continue"
    assert "no terminal" in caplog.text
    assert "4 s" in caplog.text


# ── F44: the plan ────────────────────────────────────────────────────────────────────────────────


SETTINGS: dict[str, Any] = {
    **NOT_JSON,
    "200 levels": nested(200),
    "5000 levels": nested(5000),
    "circle": circular(),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_f44_module_settings_arrive_unchanged(name):
    """Embedders pass live objects to modules, so what is in ``config`` is never read, copied or made JSON."""
    seen = []

    async def mount(coordinator, config):
        seen.append(config["value"])

    session = agent(tools={"tool-x": mount}, session={"metadata": {"value": SETTINGS[name]}})
    session.config["tools"][0]["config"] = {"value": SETTINGS[name]}
    async with session:
        assert seen[0] is SETTINGS[name]


# ── F45, F46: tool results ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("listeners", [0, 1])
async def test_f45_tool_returning_nan_costs_no_turn(listeners):
    """Events are not encoded, so nothing can break there; what the model reads is valid JSON (F46)."""

    class Broken:
        name = "broken"
        description = "Returns values that are not JSON."

        async def execute(self, input):  # noqa: A002
            return ToolResult(output={"value": math.nan})

    async def body(turn):
        result = await turn.tools["broken"].execute({})
        await turn.hooks.emit("tool:post", {"tool_name": "broken", "result": result.output})
        await turn.hooks.emit(
            "tool:post", {"tool_name": "broken", "result": result.safe_hook_presentation()}
        )
        return result.get_serialized_output()

    async def mount(coordinator, config):
        return Broken()

    async with agent(body, tools={"tool-broken": mount}) as session:
        seen: list[Any] = []
        if listeners:
            session.coordinator.hooks.register(
                "tool:post", lambda event, data: seen.append(data["result"])
            )
        assert json.loads(await session.execute("go")) == {"value": None}
        if listeners:
            assert math.isnan(seen[0]["value"])
            assert seen[1]["output"] == {"value": None}


OUTPUTS: dict[str, Any] = {
    "set": {"a": {2, 1}},
    "bytes": {"a": b"\xff\x00"},
    "datetime": {"a": datetime(2026, 1, 1, tzinfo=UTC)},
    "circle": circular(),
    "path": {"a": PurePath("x/y")},
    "nan": {"a": [math.nan, math.inf]},
    "decimal": {"a": Decimal("1.10")},
    "keys": {1: "a", (1, 2): "b", None: "c"},
}


@pytest.mark.parametrize("name", OUTPUTS)
async def test_f46_every_output_becomes_valid_json(name):
    def no_constants(text):
        pytest.fail(f"{text} is no JSON")

    text = ToolResult(output=OUTPUTS[name]).get_serialized_output()
    assert json.loads(text, parse_constant=no_constants) != {}
    text.encode()
    assert len(OUTPUTS) == 8
