"""Compactions where something else happens meanwhile, or others give what no one expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.models import ChatResponse, TextBlock, ToolSpec
from amplifier.modules.context import ContextOptions
from amplifier.modules.context.simple import SimpleContext
from amplifier.modules.loop._messages import RequestPrefix
from tests.modules.context.test_context_persistent import opened


def _said(text: str, **metadata: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **({"metadata": metadata} if metadata else {})}


def _worked(number: int) -> list[dict[str, Any]]:
    call = {"id": f"call-{number}", "name": "bash", "arguments": {}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{number}", "content": "result " * 50},
    ]


async def _filled(context: Any, messages: list[dict[str, Any]]) -> Any:
    for message in messages:
        await context.add_message(message)
    return context


class _Provider:
    def __init__(self, answer: Callable[[], Any], count: Any = None) -> None:
        self._answer = answer
        self._count = count

    async def complete(self, request: Any) -> Any:
        return self._answer()

    async def count_tokens(self, request: Any) -> Any:
        return self._count


# ── the newest request ──


@pytest.mark.parametrize(
    "about",
    [{"source": "hook"}, {"source": "steering"}, {"source": "answer_format"}, {"pinned": True}],
    ids=str,
)
async def test_messages_of_turn_do_not_replace_request(
    about: dict[str, Any],
) -> None:
    steps = [message for number in range(60) for message in _worked(number)]
    begin = [_said("first"), {"role": "assistant", "content": "done"}, _said("the newest request")]
    context = await _filled(
        SimpleContext(), [*begin, *steps[:8], _said("by the way", **about), *steps[8:]]
    )

    view = await context.get_messages_for_request(token_budget=2000)

    texts = [message["content"] for message in view]
    assert len(view) < 40
    assert "the newest request" in texts
    if about.get("source") == "steering":  # the user said that, too
        assert texts.index("by the way") == texts.index("the newest request") + 1
    if "pinned" in about:
        spoken = [message["content"] for message in view if message["role"] == "user"]
        assert spoken[-2:] == ["the newest request", "by the way"]


async def test_hook_message_is_not_first_request() -> None:
    turns = [
        message
        for number in range(60)
        for message in (_said(f"request {number}"), *_worked(number))
    ]
    context = await _filled(
        SimpleContext(), [_said("the rules of the house", source="hook"), *turns]
    )

    view = await context.get_messages_for_request(token_budget=2000)

    assert "request 0" in [message["content"] for message in view]


async def test_oversized_pins_leave_newest_request_whole() -> None:
    pinned = [_said(f"pinned {number} " + "x" * 300, pinned=True) for number in range(30)]
    rules = {"role": "system", "content": "rules " * 60}
    newest = _said("the newest request " * 10)
    context = await _filled(
        SimpleContext(), [rules, *pinned, {"role": "assistant", "content": "yes"}, newest]
    )

    view = await context.get_messages_for_request(token_budget=1800)

    assert view[0] == rules
    assert view[-1] == newest


# ── summaries ──


def _unreadable() -> Any:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Unreadable


def _broken(**fields: Any) -> ChatResponse:
    response = ChatResponse(content=[TextBlock(text="a summary")])
    for name, value in fields.items():
        setattr(response, name, value)
    return response


@pytest.mark.parametrize(
    "answer",
    [_unreadable, lambda: _broken(metadata="text"), lambda: _broken(content=None)],
    ids=["unreadable error", "metadata", "content"],
)
async def test_invalid_answer_is_not_summary(answer: Callable[[], Any]) -> None:
    context = await _filled(
        SimpleContext(), [_said(f"{number} " + "x" * 400) for number in range(40)]
    )

    view = await context.get_messages_for_request(token_budget=2500, provider=_Provider(answer))

    assert len(view) < 40
    assert len(context.compactions()) == 1


@pytest.mark.parametrize("value", [{(1, 2): 3}, 10**5000], ids=["keys", "digits"])
async def test_summary_omits_unserialisable_values(value: Any) -> None:
    messages = [{**_said(f"{number} " + "x" * 900), "unknown": value} for number in range(40)]
    context = await _filled(SimpleContext(), messages)

    await context.get_messages_for_request(token_budget=8000, provider=_Provider(_broken))

    assert context.compactions()[-1].summary == "a summary"


# ── counts ──


@pytest.mark.parametrize("counted", [10**9, 10**400], ids=["many", "more than a float"])
async def test_impossible_count_is_ignored(counted: int) -> None:
    messages = [_said(f"{number} " + "x" * 200) for number in range(15)]
    context = await _filled(SimpleContext(ContextOptions(max_tokens=1000)), messages)
    other = await _filled(SimpleContext(ContextOptions(max_tokens=1000)), messages)

    view = await context.get_messages_for_request(provider=_Provider(_unreadable, counted))

    assert view == await other.get_messages_for_request()


def test_tools_with_huge_numbers_can_change() -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer", "maximum": 2**64}}}
    tool = ToolSpec(name="a", description="", parameters=schema)
    prefix = RequestPrefix()
    prefix.follow([tool], [_said("hello")])

    found = prefix.follow([], [_said("hello")])

    assert found is not None
    assert found.reason == "tools"


# ── a conversation that is replaced meanwhile ──


@pytest.mark.parametrize("messages", [[], [_said("another")]], ids=["cleared", "replaced"])
async def test_compaction_of_replaced_messages_is_not_stored(
    tmp_path: Path, messages: list[dict[str, Any]]
) -> None:
    async with opened(tmp_path) as context:
        await _filled(context, [_said(f"{number} " + "x" * 200) for number in range(40)])
        async with anyio.create_task_group() as group:
            group.start_soon(context.set_messages, messages)
            await anyio.lowlevel.checkpoint()
            group.start_soon(context.get_messages_for_request, 1000)
        await context.add_message(_said("more"))
        assert await context.get_messages_for_request() == [*messages, _said("more")]

    async with opened(tmp_path) as again:
        assert await again.get_messages_for_request() == [*messages, _said("more")]
        assert again.compactions() == []


async def test_records_of_other_messages_are_not_followed() -> None:
    long = await _filled(SimpleContext(), [_said(f"{number} " + "x" * 200) for number in range(40)])
    await long.get_messages_for_request(token_budget=1000)
    context = SimpleContext()
    await context.restore_compactions(long.compaction_records())

    await context.add_message(_said("hello"))

    assert await context.get_messages_for_request(token_budget=4) != []
    assert next(made.is_undone for made in context.compactions())


# ── the next compaction ──


async def test_unprotected_message_brings_nothing_back() -> None:
    def planned(number: int, plan: str) -> list[dict[str, Any]]:
        call = {"id": f"plan-{number}", "name": "todo", "arguments": {}}
        result = {"role": "tool", "tool_call_id": f"plan-{number}", "content": plan}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}, result]

    context = SimpleContext()
    for number in range(80):
        said = [_said(f"request {number}"), {"role": "assistant", "content": "y" * 300}]
        plan = {0: planned(0, "long plan " * 600), 60: planned(60, "short plan")}.get(number, [])
        await _filled(context, [*said, *plan])
        await context.get_messages_for_request(token_budget=4000)

    made = context.compactions()
    assert [each.start for each in made] == sorted(each.start for each in made)
    assert all(each.after_tokens < each.before_tokens for each in made)


async def test_first_prompt_attachments_do_not_stay() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "A" * 400_000}
    blocks = [{"type": "text", "text": "read this"}, {"type": "document", "source": source}]
    steps = [
        message
        for number in range(60)
        for message in (_said(f"request {number}"), *_worked(number))
    ]
    context = await _filled(SimpleContext(), [{"role": "user", "content": blocks}, *steps])

    view = await context.get_messages_for_request(token_budget=4000)

    assert view[0]["content"] == [
        blocks[0],
        {"type": "text", "text": "[message 1: document left out]"},
    ]
    assert len(view) > 8
    assert (await context.get_messages())[0]["content"] == blocks


@pytest.mark.parametrize("share", [0.7, 0.79, 0.85])
async def test_large_instructions_leave_compactions_rare(share: float) -> None:
    context = SimpleContext()
    rules = {"role": "system", "content": "s" * int(4 * 8000 * share)}
    await context.add_message(rules)
    for number in range(60):
        await _filled(
            context, [_said(f"request {number}"), {"role": "assistant", "content": "y" * 300}]
        )
        view = await context.get_messages_for_request(token_budget=8000)
        assert rules in view
        assert _said(f"request {number}") in view

    assert 1 <= len(context.compactions()) <= 8
