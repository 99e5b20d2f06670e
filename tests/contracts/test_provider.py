"""The provider contract: its shape."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from amplifier.contracts import Provider
from amplifier.models import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, ToolCall


class Silent:
    name = "silent"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="silent", display_name="Silent")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[])

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return []


def test_a_class_with_the_five_members_is_a_provider() -> None:
    provider: Provider = Silent()
    assert isinstance(provider, Provider)


@pytest.mark.parametrize("missing", ["name", "get_info", "list_models", "complete", "parse_tool_calls"])
def test_a_class_that_lacks_one_member_is_no_provider(missing: str) -> None:
    members = {name: value for name, value in vars(Silent).items() if name != missing and not name.startswith("__")}
    assert not isinstance(type("Partial", (), members)(), Provider)


def test_only_asking_the_service_is_async() -> None:
    assert {
        name: inspect.iscoroutinefunction(getattr(Provider, name))
        for name in ("get_info", "list_models", "complete", "parse_tool_calls")
    } == {"get_info": False, "list_models": True, "complete": True, "parse_tool_calls": False}
