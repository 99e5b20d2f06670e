"""The context contract: its shape."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from amplifier.contracts import ContextManager

METHODS = {
    "add_message": ["message"],
    "get_messages_for_request": ["token_budget", "provider"],
    "get_messages": [],
    "set_messages": ["messages"],
    "clear": [],
}


class Memory:
    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self._messages.append(dict(message))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        return await self.get_messages()

    async def get_messages(self) -> list[dict[str, Any]]:
        return [dict(message) for message in self._messages]

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = [dict(message) for message in messages]

    async def clear(self) -> None:
        self._messages = []


def test_a_class_with_the_five_methods_is_a_context() -> None:
    context: ContextManager = Memory()
    assert isinstance(context, ContextManager)


@pytest.mark.parametrize("missing", METHODS)
def test_a_class_that_lacks_one_method_is_no_context(missing: str) -> None:
    methods = {name: value for name, value in vars(Memory).items() if name in METHODS and name != missing}
    assert not isinstance(type("Partial", (), methods)(), ContextManager)


@pytest.mark.parametrize(("name", "parameters"), METHODS.items())
def test_every_method_is_async_and_takes_what_published_callers_pass(name: str, parameters: list[str]) -> None:
    method = getattr(ContextManager, name)
    assert inspect.iscoroutinefunction(method)
    assert list(inspect.signature(method).parameters) == ["self", *parameters]


def test_the_budget_and_the_provider_may_be_left_out() -> None:
    defaults = inspect.signature(ContextManager.get_messages_for_request).parameters
    assert defaults["token_budget"].default is None
    assert defaults["provider"].default is None
