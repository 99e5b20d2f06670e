"""MockContextManager: the five methods, and nothing shared."""

from __future__ import annotations

import pytest

from amplifier.testing import MockContextManager


async def test_nothing_given_or_returned_is_shared() -> None:
    first = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    context = MockContextManager([first])
    await context.add_message(first)
    await context.set_messages([first])
    (await context.get_messages())[0]["content"].append("changed")
    (await context.get_messages_for_request())[0]["content"].append("changed")
    first["content"] = "changed"
    assert context.messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


async def test_set_messages_and_clear_replace_everything() -> None:
    context = MockContextManager([{"role": "user", "content": "old"}])
    held = context.messages
    await context.set_messages([{"role": "user", "content": "new"}, {"role": "assistant", "content": None}])
    assert [message["content"] for message in context.messages] == ["new", None]
    await context.clear()
    assert await context.get_messages() == []
    assert held is context.messages


async def test_a_message_without_a_role_is_refused_and_nothing_is_stored() -> None:
    context = MockContextManager([{"role": "user", "content": "old"}])
    with pytest.raises(ValueError, match=r"needs a 'role' such as 'user'; got the keys \['content'\]"):
        await context.add_message({"content": "x"})
    with pytest.raises(ValueError, match="role"):
        await context.set_messages([{"role": "user", "content": "new"}, {"content": "x"}])
    assert context.messages == [{"role": "user", "content": "old"}]


async def test_requests_are_remembered_with_their_arguments() -> None:
    context, provider = MockContextManager(), object()
    await context.get_messages_for_request()
    await context.get_messages_for_request(token_budget=5, provider=provider)
    assert context.requests == [{"token_budget": None, "provider": None}, {"token_budget": 5, "provider": provider}]
    assert repr(context) == "<MockContextManager with 0 messages>"
