"""Module contracts: the context contract, with the context its snippets make up."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import ContextManager, Message, ModuleCoordinator, from_dict
from tests.seeds.seed_sessions import seed_session


class MyContextManager:
    """The document's context as far as a session needs it: its snippets for the five methods."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        if "role" not in message:
            raise ValueError("Message must have 'role' field")

        self._messages.append(message)

    async def get_messages_for_request(
        self,
        token_budget: int | None = None,
        provider: Any | None = None,
    ) -> list[dict[str, Any]]:
        return list(self._messages)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)

    async def clear(self) -> None:
        self._messages = []


async def mount(coordinator: ModuleCoordinator, config: dict) -> ContextManager | Callable | None:
    context = MyContextManager(max_tokens=config.get("max_tokens", 100000))
    await coordinator.mount("session", context, name="context")
    return context


def test_protocol_has_five_async_methods() -> None:
    assert isinstance(MyContextManager(1), ContextManager)
    for name, parameters in {
        "add_message": ["self", "message"],
        "get_messages_for_request": ["self", "token_budget", "provider"],
        "get_messages": ["self"],
        "set_messages": ["self", "messages"],
        "clear": ["self"],
    }.items():
        method = getattr(ContextManager, name)
        assert inspect.iscoroutinefunction(method)
        assert list(inspect.signature(method).parameters) == parameters


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "User's input text"},
    {"role": "assistant", "content": "Assistant's response"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_123",
                "type": "function",
                "function": {"name": "read_file", "arguments": "{}"},
            },
        ],
    },
    {"role": "system", "content": "System instructions"},
    {"role": "tool", "tool_call_id": "call_123", "content": "Tool output"},
]
"""The document's five forms of a message; the ``{...}`` of its arguments is empty here."""


@pytest.mark.parametrize(
    "message", [m for m in MESSAGES if m["content"] is not None], ids=lambda m: m["role"]
)
def test_context_message_fits_provider(message: dict[str, Any]) -> None:
    """Without the form whose content is None: the model wants text or blocks, so a loop has to convert that one."""
    assert from_dict(Message, message).content == message["content"]


async def test_mount_at_session_by_name_is_understood() -> None:
    async with seed_session(context=mount) as session:
        context = session.coordinator.get("context")
        assert isinstance(context, MyContextManager)
        assert await session.execute("hello") == "answer to hello"


async def test_context_configuration_reaches_mount() -> None:
    """The document states only that it "can be passed via top-level config": the section ``context`` beside ``session``."""
    session = seed_session(context=mount)
    session.config["context"] = {"config": {"max_tokens": 7}}
    async with session:
        assert session.coordinator.get("context")._max_tokens == 7
