"""The hook registry, used by itself as suites of published modules do."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from amplifier_core import HookRegistry, HookResult, ToolResult, Usage, correlation


def run(awaitable):
    """Run a coroutine, or what a function gives inside the loop: native methods must be called there."""

    async def main():
        return await (awaitable() if callable(awaitable) else awaitable)

    return asyncio.run(main())


def recorder(seen, result=None):
    async def handler(event, data):
        seen.append((event, data))
        return HookResult(action="continue") if result is None else result

    return handler


# ── registration ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["register", "on"])
def test_handler_registration_and_removal(way):
    registry, seen = HookRegistry(), []
    remove = getattr(registry, way)("e", recorder(seen), name="mine")
    assert registry.list_handlers("e") == {"e": ["mine"]}
    run(lambda: registry.emit("e", {"a": 1}))
    assert seen[0][0] == "e"
    assert seen[0][1]["a"] == 1
    assert remove() is None
    remove()
    assert registry.list_handlers("e") == {"e": []}
    run(lambda: registry.emit("e", {}))
    assert len(seen) == 1


def test_keywords_and_order():
    registry, order = HookRegistry(), []

    def make(name):
        async def handler(event, data):
            order.append(name)

        return handler

    registry.register(event="e", handler=make("late"), priority=10, name="late")
    registry.register("e", make("early"), -5, "early")
    registry.register("e", make("first"), 0, name="first")
    registry.register("e", make("second"), name="second")
    run(lambda: registry.emit("e", {}))
    assert order == ["early", "first", "second", "late"]
    assert registry.list_handlers()["e"] == order
    assert registry.list_handlers("nothing") == {"nothing": []}


def test_class_constants():
    assert (HookRegistry.SESSION_START, HookRegistry.SESSION_END) == (
        "session:start",
        "session:end",
    )
    assert (*("prompt:submit", "tool:pre", "tool:post"),) == (
        HookRegistry.PROMPT_SUBMIT,
        HookRegistry.TOOL_PRE,
        HookRegistry.TOOL_POST,
    )
    assert HookRegistry.CONTEXT_PRE_COMPACT == "context:pre_compact"
    assert HookRegistry.ORCHESTRATOR_COMPLETE == "orchestrator:complete"
    assert HookRegistry.USER_NOTIFICATION == "user:notification"


def test_mocks_and_bound_methods_are_handlers():
    registry = HookRegistry()
    mock, result = AsyncMock(return_value=HookResult(action="continue")), []

    class Hook:
        async def handle(self, event, data):
            result.append(event)

        def __call__(self, event, data):
            result.append("called")

    registry.register("e", mock, name="mock")
    registry.register("e", Hook().handle, name="bound")
    registry.register("e", Hook(), name="callable")
    answer = run(lambda: registry.emit("e", {"x": 1}))
    assert answer.action == "continue"
    mock.assert_awaited_once()
    assert mock.await_args.args[0] == "e"
    assert result == ["e", "called"]


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────


def test_handlers_get_json():
    registry, seen = HookRegistry(), []
    registry.register("e", recorder(seen))
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    run(lambda: registry.emit(
            "e",
            {
                "z": 1, "decimal": Decimal("1.50"), "path": Path("/x"), "when": datetime.fromisoformat("2024-01-01T12:00"), "pair": (1, 2), 5: "five",
                "usage": usage, "result": ToolResult(output={"a": 1}), "error": ValueError("bad"), "nested": {"d": [Decimal("2")]},
                "deep": {"b": 1, "a": {"d": 1, "c": 2}},
            },
        )
    )  # fmt: skip
    data = seen[0][1]
    assert (data["decimal"], data["path"], data["pair"], data["5"]) == (
        "1.50",
        "/x",
        [1, 2],
        "five",
    )
    assert data["when"] == "2024-01-01 12:00:00"
    assert data["usage"] == str(usage)
    assert data["result"] == "{'a': 1}"
    assert (data["error"], data["nested"]) == ("bad", {"d": ["2"]})
    assert list(data) == sorted(data)
    assert (list(data["deep"]), list(data["deep"]["a"])) == (["a", "b"], ["c", "d"])


def test_dumpable_objects_are_payloads():
    class Dumps:
        def model_dump(self):
            return {"greeting": "hi"}

    registry, seen = HookRegistry(), []
    registry.register("e", recorder(seen))
    run(lambda: registry.emit("e", Dumps()))
    assert seen[0][1]["greeting"] == "hi"
    assert run(lambda: registry.emit_and_collect("e", Dumps())) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_json_numbers_are_refused(value):
    with pytest.raises(RuntimeError, match="Invalid JSON"):
        run(lambda: HookRegistry().emit("e", {"x": value}))


def test_self_containing_payload_is_refused():
    loop = {}
    loop["me"] = loop
    with pytest.raises(ValueError, match=r"(?i)circular|itself"):
        run(lambda: HookRegistry().emit("e", loop))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_modification_replaces_and_returns_continue():
    registry, seen = HookRegistry(), []

    async def change(event, data):
        return HookResult(
            action="modify", data={**data, "x": 2}, reason="because", user_message="psst"
        )

    registry.register("e", change, 0)
    registry.register("e", recorder(seen), 1)
    result = run(lambda: registry.emit("e", {"x": 1, "y": 1}))
    assert (result.action, result.data["x"], result.data["y"]) == ("continue", 2, 1)
    assert seen[0][1]["x"] == 2


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────


def test_emit_gives_coroutines():
    async def main():
        registry = HookRegistry()
        for pending in (registry.emit("e", {}), registry.emit_and_collect("e", {})):
            assert inspect.iscoroutine(pending)
            await pending
        result = await asyncio.create_task(registry.emit("e", json.dumps({})))
        assert result.action == "continue"

    run(main())


# ── ids of calls of language models ──────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _no_call_is_open():
    correlation.reset_request_id()
    yield
    correlation.reset_request_id()


def test_id_rules():
    made = correlation.resolve_request_id("llm:request")
    assert uuid.UUID(made).version == 4
    assert correlation.current_request_id() == made
    assert correlation.resolve_request_id("provider:retry") == made
    assert correlation.resolve_request_id("tool:pre") is None
    assert correlation.resolve_request_id("llm:response") == made
    assert correlation.resolve_request_id("llm:response") is None
    assert correlation.resolve_request_id("llm:request", "theirs") == "theirs"
    assert correlation.resolve_request_id("provider:error") == "theirs"
    assert correlation.REQUEST_ID_FIELD == "request_id"
    assert correlation.new_request_id() != correlation.new_request_id()


def test_concurrent_calls_keep_their_ids():
    registry, seen = HookRegistry(), []
    for event in ("llm:request", "llm:response"):
        registry.register(event, recorder(seen))

    async def call(number):
        await registry.emit("llm:request", {"n": number})
        await asyncio.sleep(0.001)
        await registry.emit("llm:response", {"n": number})

    async def main():
        await asyncio.gather(*(call(number) for number in range(10)))
        await registry.emit("llm:response", {"n": "alone"})

    run(main())
    ids = {}
    for _, data in seen:
        ids.setdefault(data["n"], set()).add(data.get("request_id"))
    assert ids.pop("alone") == {None}
    assert all(len(found) == 1 for found in ids.values())
    assert len(set.union(*ids.values())) == 10
