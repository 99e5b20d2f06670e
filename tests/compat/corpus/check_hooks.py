"""The hook registry, used by itself as suites of published modules do."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import uuid
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest
from amplifier_core import ContextInjection, HookRegistry, HookResult, ToolResult, Usage, correlation


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
def test_a_handler_comes_and_goes(way):
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


def test_names_are_made_up_and_may_repeat():
    registry = HookRegistry()
    registry.register("e", lambda e, d: None)
    assert registry.list_handlers("e")["e"][0].startswith("_auto_e_")
    for event in ("a", "b", "a"):
        registry.register(event, lambda e, d: None, name="same")
    assert registry.list_handlers("a") == {"a": ["same", "same"]}
    registry.unregister("same")
    assert registry.list_handlers("a") == {"a": ["same"]}
    registry.unregister("nobody")


def test_the_removers_own_one_registration_each():
    registry, seen = HookRegistry(), []
    old = registry.register("e", lambda e, d: seen.append("old"), name="n")
    new = registry.register("e", lambda e, d: seen.append("new"), name="n")
    old()
    old()
    run(lambda: registry.emit("e", {}))
    assert seen == ["new"]
    new()
    run(lambda: registry.emit("e", {}))
    assert seen == ["new"]


@pytest.mark.parametrize("priority", ["high", None, 1.5])
def test_a_priority_is_a_whole_number(priority):
    with pytest.raises(TypeError):
        HookRegistry().register("e", lambda e, d: None, priority)


def test_class_constants():
    assert (HookRegistry.SESSION_START, HookRegistry.SESSION_END) == ("session:start", "session:end")
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


def test_a_magic_mock_answer_is_refused():
    registry = HookRegistry()
    registry.register("e", MagicMock(return_value=SimpleNamespace(action="continue")), name="odd")
    assert run(lambda: registry.emit("e", {})).action == "deny"


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────


def test_defaults_and_timestamp():
    registry, seen = HookRegistry(), []
    registry.set_default_fields(session_id="s", env="test")
    registry.register("e", recorder(seen))
    run(lambda: registry.emit("e", {"session_id": "mine", "timestamp": "never"}))
    data = seen[0][1]
    assert (data["session_id"], data["env"]) == ("mine", "test")
    moment = datetime.fromisoformat(data["timestamp"])
    assert moment.utcoffset().total_seconds() == 0
    registry.set_default_fields(other=1)
    run(lambda: registry.emit("e", {}))
    assert "env" not in seen[1][1]
    assert seen[1][1]["other"] == 1


def test_without_handlers_nothing_is_added():
    registry = HookRegistry()
    registry.set_default_fields(session_id="s")
    result = run(lambda: registry.emit("e", {"a": 1}))
    assert (result.action, result.data) == ("continue", {"a": 1})


def test_handlers_get_json():
    registry, seen = HookRegistry(), []
    registry.register("e", recorder(seen))
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    run(lambda: registry.emit(
            "e",
            {
                "z": 1, "decimal": Decimal("1.50"), "path": Path("/x"), "when": datetime.fromisoformat("2024-01-01T12:00"), "pair": (1, 2), 5: "five",
                "usage": usage, "result": ToolResult(output={"a": 1}), "error": ValueError("bad"), "nested": {"d": [Decimal("2")]},
            },
        )
    )  # fmt: skip
    data = seen[0][1]
    assert (data["decimal"], data["path"], data["pair"], data["5"]) == ("1.50", "/x", [1, 2], "five")
    assert data["when"] == "2024-01-01 12:00:00"
    assert data["usage"] == str(usage)
    assert data["result"] == "{'a': 1}"
    assert (data["error"], data["nested"]) == ("bad", {"d": ["2"]})
    assert list(data) == sorted(data)


def test_every_handler_gets_a_copy():
    registry, seen = HookRegistry(), []
    given = {"inner": {"a": 1}}

    async def spoil(event, data):
        data["inner"]["a"] = 2
        data["new"] = True

    registry.register("e", spoil, 0)
    registry.register("e", recorder(seen), 1)
    result = run(lambda: registry.emit("e", given))
    assert given == {"inner": {"a": 1}}
    assert seen[0][1]["inner"] == {"a": 1}
    assert "new" not in result.data


def test_objects_that_can_dump_themselves_are_payloads():
    class Dumps:
        def model_dump(self):
            return {"greeting": "hi"}

    registry, seen = HookRegistry(), []
    registry.register("e", recorder(seen))
    run(lambda: registry.emit("e", Dumps()))
    assert seen[0][1]["greeting"] == "hi"
    assert run(lambda: registry.emit_and_collect("e", Dumps())) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(RuntimeError, match="Invalid JSON"):
        run(lambda: HookRegistry().emit("e", {"x": value}))


def test_a_payload_that_contains_itself_is_refused():
    loop = {}
    loop["me"] = loop
    with pytest.raises(ValueError, match=r"(?i)circular|itself"):
        run(lambda: HookRegistry().emit("e", loop))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [None, {}, {"action": "continue", "odd": 1}, HookResult()])
def test_answers_that_mean_go_on(answer):
    registry = HookRegistry()
    registry.register("e", AsyncMock(return_value=answer))
    assert run(lambda: registry.emit("e", {})).action == "continue"


@pytest.mark.parametrize(
    "answer", ["yes", 5, True, [1], {"action": "explode"}, object(), {"action": "modify", "data": 5}]
)
def test_invalid_results_deny(answer):
    registry, seen = HookRegistry(), []
    registry.register("e", AsyncMock(return_value=answer), 0)
    registry.register("e", recorder(seen), 1)
    result = run(lambda: registry.emit("e", {}))
    assert (result.action, result.reason) == ("deny", "Hook handler returned invalid response")
    assert seen == []


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError(), RuntimeError("y")])
def test_a_handler_that_raises_is_passed_over(error, caplog):
    registry, seen = HookRegistry(), []
    registry.register("e", AsyncMock(side_effect=error), 0, name="bad")
    registry.register("e", recorder(seen), 1)
    with caplog.at_level(logging.ERROR):
        assert run(lambda: registry.emit("e", {})).action == "continue"
    assert len(seen) == 1


def test_a_denial_ends_it():
    registry, seen = HookRegistry(), []
    registry.register("e", AsyncMock(return_value=HookResult(action="deny", reason="no", data={"a": 1})), 0)
    registry.register("e", recorder(seen), 1)
    result = run(lambda: registry.emit("e", {"x": 1}))
    assert (result.action, result.reason, result.data["a"]) == ("deny", "no", 1)
    assert seen == []


def test_a_modification_replaces_and_comes_back_as_continue():
    registry, seen = HookRegistry(), []

    async def change(event, data):
        return HookResult(action="modify", data={**data, "x": 2}, reason="because", user_message="psst")

    registry.register("e", change, 0)
    registry.register("e", recorder(seen), 1)
    result = run(lambda: registry.emit("e", {"x": 1, "y": 1}))
    assert (result.action, result.data["x"], result.data["y"]) == ("continue", 2, 1)
    assert seen[0][1]["x"] == 2


def test_data_of_a_continue_is_ignored():
    registry = HookRegistry()
    registry.register("e", AsyncMock(return_value=HookResult(action="continue", data={"x": 9})))
    assert run(lambda: registry.emit("e", {"x": 1})).data["x"] == 1


def test_injections_are_joined_with_their_origin():
    registry = HookRegistry()
    one = HookResult(
        action="inject_context", context_injection="A", context_injection_role="user", suppress_output=True
    )
    two = HookResult(
        action="inject_context",
        context_injections=[ContextInjection(content="B", ephemeral=True, hook_name="forged", event="forged")],
        append_to_last_tool_result=True,
    )
    registry.register("e", AsyncMock(return_value=one), 0, name="one")
    registry.register("e", AsyncMock(return_value=two), 1, name="two")
    result = run(lambda: registry.emit("e", {}))
    assert (result.action, result.context_injection, result.context_injection_role) == (
        "inject_context",
        "A\n\nB",
        "user",
    )
    assert result.ephemeral is True
    assert result.suppress_output is True
    assert [(i.content, i.hook_name, i.event) for i in result.context_injections] == [
        ("A", "one", "e"),
        ("B", "two", "e"),
    ]


def test_one_injection_keeps_its_other_fields():
    registry = HookRegistry()
    only = HookResult(action="inject_context", context_injection="A", user_message="u", reason="r", ephemeral=True)
    registry.register("e", AsyncMock(return_value=only), name="only")
    result = run(lambda: registry.emit("e", {}))
    assert (result.user_message, result.reason, result.ephemeral) == ("u", "r", True)
    assert result.context_injections[0].hook_name == "only"


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


def test_collect_calls_every_handler():
    registry = HookRegistry()
    registry.register("e", lambda e, d: HookResult(action="deny", data={"n": 1}), 0)
    registry.register("e", AsyncMock(return_value={"action": "continue", "data": {"n": 2}}), 1)
    registry.register("e", AsyncMock(side_effect=ValueError("x")), 2)
    registry.register("e", AsyncMock(return_value=None), 3)
    assert run(lambda: registry.emit_and_collect("e", {})) == [{"n": 1}, {"n": 2}]


def test_collect_does_not_wait_long():
    registry, ended = HookRegistry(), []

    async def slow(event, data):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    registry.register("e", slow, 0)
    registry.register("e", AsyncMock(return_value=HookResult(data={"n": 2})), 1)

    async def main():
        found = await registry.emit_and_collect("e", {}, timeout=0.05)
        for _ in range(100):
            if ended:
                break
            await asyncio.sleep(0.01)
        return found

    assert run(main()) == [{"n": 2}]
    assert ended == [True]


def test_cancelling_an_emit_cancels_its_handler_and_nothing_else():
    async def main():
        registry = HookRegistry()
        entered, left, other_runs = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(event, data):
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        async def other():
            await other_runs.wait()
            return "done"

        registry.register("e", handler)
        sibling = asyncio.create_task(other())
        pending = asyncio.create_task(registry.emit("e", {}))
        await asyncio.wait_for(entered.wait(), 60)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await asyncio.wait_for(left.wait(), 60)
        other_runs.set()
        assert await sibling == "done"

    run(main())


def test_a_handler_may_emit_and_register():
    registry, seen = HookRegistry(), []

    async def outer(event, data):
        registry.register("inner", recorder(seen))
        await registry.emit("inner", {"from": event})

    registry.register("outer", outer)
    run(lambda: registry.emit("outer", {}))
    assert seen[0][1]["from"] == "outer"


# ── ids of calls of language models ──────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _no_call_is_open():
    correlation.reset_request_id()
    yield
    correlation.reset_request_id()


def test_the_rules_of_ids():
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


def test_calls_at_the_same_time_keep_their_ids():
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
