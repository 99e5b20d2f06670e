"""context-simple: everything is kept, nothing is shared, and what the model is shown fits (clauses C1 to C22)."""

from __future__ import annotations

import copy
import json
from typing import Any

import anyio
import pytest
from hypothesis import strategies as st

from amplifier import AmplifierError, AmplifierSession
from amplifier.conformance.strategies import json_values
from amplifier.models import TextBlock, ToolCall, to_dict
from amplifier.modules.context import ContextOptions
from amplifier.modules.context.simple import SimpleContext
from amplifier.testing import MockProvider, MockTool

# ── the store against a model ────────────────────────────────────────────────────────────────────


def messages() -> st.SearchStrategy[dict[str, Any]]:
    """Anything that has a role."""
    roles = st.sampled_from(
        ["system", "developer", "user", "assistant", "tool", "function", "of another kind"]
    )
    return st.builds(
        lambda role, rest: {**rest, "role": role},
        roles,
        st.dictionaries(
            st.sampled_from(["content", "tool_calls", "tool_call_id", "name", "metadata", "new"]),
            json_values(),
        ),
    )


def programs() -> st.SearchStrategy[list[tuple[str, Any]]]:
    """What may happen to a context, as (operation, argument)."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), messages()),
            st.tuples(st.just("add"), messages()),
            st.tuples(st.just("add twice"), messages()),
            st.tuples(st.just("add and change"), messages()),
            st.tuples(
                st.just("refuse"),
                st.sampled_from([{}, {"content": "x"}, {"role": None}, "text", None, [1]]),
            ),
            st.tuples(st.just("set"), st.lists(messages(), max_size=3)),
            st.tuples(st.just("refuse to set"), messages()),
            st.tuples(st.just("clear"), st.none()),
            st.tuples(st.just("change what was returned"), st.none()),
            st.tuples(st.just("request"), st.integers(-5, 300)),
        ),
        max_size=12,
    )


async def perform(context: Any, operation: str, argument: Any, expected: list[Any]) -> list[Any]:
    """Do one step of a program; returns what must be stored now."""
    match operation:
        case "add":
            await context.add_message(argument)
            return [*expected, copy.deepcopy(argument)]
        case "add twice":
            await context.add_message(argument)
            await context.add_message(argument)
            return [*expected, copy.deepcopy(argument), copy.deepcopy(argument)]
        case "add and change":
            before = copy.deepcopy(argument)
            await context.add_message(argument)
            spoil(argument)
            return [*expected, before]
        case "refuse":
            with pytest.raises(ValueError, match="message"):
                await context.add_message(argument)
        case "set":
            before = copy.deepcopy(argument)
            await context.set_messages(argument)
            spoil(argument)
            return list(before)
        case "refuse to set":
            with pytest.raises(ValueError, match="role"):
                await context.set_messages([argument, {"content": "without a role"}])
        case "clear":
            await context.clear()
            return []
        case "change what was returned":
            spoil(await context.get_messages())
            spoil(await context.get_messages_for_request(10))
            spoil(await context.get_messages_for_request())
        case "request":
            await context.get_messages_for_request(argument)
    return expected


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    children = (
        list(value.values())
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, list)
        else []
    )
    for child in children:
        spoil(child)
    if isinstance(value, dict):
        value.clear()
        value["spoiled"] = True
    elif isinstance(value, list):
        value[:] = ["spoiled"]


async def test_message_without_role_is_refused():
    context = SimpleContext()
    with pytest.raises(ValueError, match=r"needs a 'role'.*got the keys \['content'\]"):
        await context.add_message({"content": "hello"})
    with pytest.raises(ValueError, match="got a str"):
        await context.add_message("hello")  # type: ignore[arg-type]
    assert await context.get_messages() == []


async def test_self_containing_message_is_refused():
    message: dict[str, Any] = {"role": "user"}
    message["content"] = [message]
    context = SimpleContext()
    with pytest.raises(ValueError, match="contains itself"):
        await context.add_message(message)
    assert await context.get_messages() == []


async def test_unserialisable_values_are_kept():
    strange: Any = {
        "role": "user",
        "content": "\ud800",
        "big": 10**400,
        "object": object(),
        7: b"seven",
        "t": (1, [2]),
    }
    context = SimpleContext()
    await context.add_message(strange)
    assert await context.get_messages() == [strange]
    assert await context.get_messages_for_request() == [strange]


async def test_counters_begin_anew_when_everything_is_replaced():
    context = SimpleContext()
    for number in range(50):
        await context.add_message({"role": "user", "content": f"{number} " * 20})
    await context.get_messages_for_request(100)
    assert context.statistics().compactions == 1
    tokens = context.statistics().tokens
    assert tokens > 500
    await context.set_messages([{"role": "user", "content": "one"}])
    assert context.statistics().tokens < tokens / 20
    assert await context.get_messages_for_request(100) == [{"role": "user", "content": "one"}]
    assert context.statistics().compactions == 0
    await context.clear()
    assert await context.get_messages_for_request(1) == []
    assert context.statistics().compactions == 0
    assert context.statistics().tokens == context.statistics().messages == 0
    assert repr(context) == "<SimpleContext with 0 messages, about 0 tokens>"


# ── the budget ───────────────────────────────────────────────────────────────────────────────────


class Window:
    """A provider that only reports its context window."""

    def __init__(self, **defaults: Any) -> None:
        self.defaults: Any = defaults

    def get_info(self) -> Any:
        return self


class Broken:
    def get_info(self) -> Any:
        raise RuntimeError("no idea")


def size(view: list[dict[str, Any]]) -> float:
    """Tokens as anybody would estimate them."""
    return (
        sum(
            len(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())
            for message in view
        )
        / 4
    )


@pytest.mark.parametrize(
    ("arguments", "budget"),
    [
        ({"token_budget": 700}, 700),
        (
            {"token_budget": 700, "provider": Window(context_window=9000, max_output_tokens=100)},
            700,
        ),
        ({"provider": Window(context_window=9000, max_output_tokens=7000)}, 1000),
        ({"provider": Window(context_window=2500, max_output_tokens=2000)}, 500),
        ({"provider": Window(context_window=2000, max_output_tokens=2000)}, 1000),
        ({"provider": Window(context_window=1800)}, 800),
        ({"provider": Window(context_window=900_000)}, 1500),
        ({"provider": Window()}, 1500),
        ({"provider": Window(context_window="large", max_output_tokens=None)}, 1500),
        ({"provider": Window(context_window=True, max_output_tokens=1)}, 1500),
        ({"provider": Broken()}, 1500),
        ({"provider": object()}, 1500),
        ({}, 1500),
    ],
)
async def test_budget_precedence(arguments, budget):
    """The given budget wins, then the provider's, then the configured one."""
    context = SimpleContext(
        ContextOptions(max_tokens=1500, compaction_threshold=1.0, compaction_target=1.0)
    )
    for number in range(200):
        await context.add_message(
            {"role": "user", "content": f"{number:04} and some more words to fill a line of text"}
        )
    view = await context.get_messages_for_request(**arguments)
    assert budget * 0.9 < size(view) <= budget


@pytest.mark.parametrize("kind", ["image", "audio"])
async def test_picture_size_ignores_base64(kind):
    picture = {"type": kind, "source": {"type": "base64", "data": "A" * 4_000_000}}
    nested = {
        "type": "tool_result",
        "tool_call_id": "c",
        "output": [picture, {"type": "text", "text": "seen"}],
    }
    context = SimpleContext()
    await context.add_message(
        {"role": "assistant", "content": [{"type": "tool_call", "id": "c", "name": "look"}]}
    )
    await context.add_message({"role": "user", "content": [nested, picture]})
    assert 3000 < context.statistics().tokens < 4000
    assert await context.get_messages_for_request() == await context.get_messages()


# ── events ───────────────────────────────────────────────────────────────────────────────────────


class Hooks:
    """Writes down what is emitted and may do something meanwhile."""

    def __init__(self, meanwhile: Any = None) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self._meanwhile = meanwhile

    async def emit(self, event: str, data: dict[str, Any]) -> None:
        self.heard.append((event, data))
        if self._meanwhile is not None:
            await self._meanwhile(event)


async def test_compaction_events_have_counts():
    hooks = Hooks()
    context = SimpleContext(hooks=hooks)  # type: ignore[arg-type]
    for number in range(40):
        await context.add_message({"role": "user", "content": f"{number} " * 10})
    await context.get_messages_for_request()
    assert hooks.heard == []
    before = context.statistics()
    view = await context.get_messages_for_request(200)
    (first, pre), (second, post), (third, record) = hooks.heard
    assert (first, second, third) == (
        "context:pre_compact",
        "context:post_compact",
        "context:compaction",
    )
    assert pre == {"message_count": 40, "token_count": before.tokens}
    assert post == {"message_count": len(view), "token_count": post["token_count"]}
    assert 0 < post["token_count"] <= 200
    assert record == {
        "before_messages": 40,
        "after_messages": len(view),
        "before_tokens": before.tokens,
        "after_tokens": post["token_count"],
        "budget": 200,
        "count_error": None,
        "tier": "left_out",
        "left_out": 40 - (len(view) - 1),
        "summary": None,
        "failure": None,
        "usage": None,
    }
    assert await context.get_messages_for_request(200) == view
    assert len(hooks.heard) == 3, "the view stays, and nothing is told again"


async def test_compaction_handlers_may_use_context():
    async def meanwhile(event: str) -> None:
        if event == "context:pre_compact":
            await context.add_message({"role": "user", "content": "added meanwhile"})
            assert len(await context.get_messages()) == 41

    context = SimpleContext(hooks=Hooks(meanwhile))  # type: ignore[arg-type]
    for number in range(40):
        await context.add_message({"role": "user", "content": f"{number} " * 10})
    with anyio.fail_after(60):
        view = await context.get_messages_for_request(200)
    assert view[-1]["content"] == "added meanwhile"


async def test_conversation_cleared_by_handler_is_empty():
    async def meanwhile(event: str) -> None:
        await context.clear()

    context = SimpleContext(hooks=Hooks(meanwhile))  # type: ignore[arg-type]
    await context.add_message({"role": "user", "content": "words " * 100})
    assert await context.get_messages_for_request(10) == []


# ── in a session ─────────────────────────────────────────────────────────────────────────────────


def session(
    turns: list[Any], config: dict[str, Any], context: str = "context-simple", **options: Any
) -> AmplifierSession:
    async def work(given: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return given

    plan = {
        "session": {"orchestrator": "loop-basic", "context": {"module": context, "config": config}},
        "providers": [MockProvider(turns)],
        "tools": [MockTool("look", respond=work)],
    }
    return AmplifierSession(plan, **options)


async def test_target_above_threshold_is_refused():
    """Without a target, it follows the threshold."""
    with pytest.raises(
        AmplifierError,
        match=r"compaction_target: expected at most the compaction_threshold \(0.3\)",
    ):
        async with session([], {"compaction_threshold": 0.3, "compaction_target": 0.4}):
            pass
    async with session([], {"compaction_threshold": 0.3}) as agent:
        assert agent.coordinator.get("context")._options.compaction_target == pytest.approx(0.1875)


# ── messages with objects ────────────────────────────────────────────────────────────────────────


async def test_objects_are_stored_as_unshared_json():
    context, block = SimpleContext(), TextBlock(text="original")
    call = ToolCall(id="1", name="look", arguments={"at": ["x"]})
    await context.add_message({"role": "assistant", "content": [block], "tool_calls": [call]})
    block.text = "changed"
    call.arguments["at"].append("changed")
    (stored,) = await context.get_messages()
    assert stored["content"] == [to_dict(TextBlock(text="original"))]
    assert stored["tool_calls"] == [to_dict(ToolCall(id="1", name="look", arguments={"at": ["x"]}))]
