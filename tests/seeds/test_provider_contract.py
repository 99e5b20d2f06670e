"""Module contracts: the provider contract."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ModuleCoordinator,
    Provider,
    ProviderInfo,
    ToolCall,
)
from amplifier.testing import MockProvider
from tests.seeds.seed_sessions import seed_session

logger = logging.getLogger("seeds")


class Client:
    def __init__(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False


class MyProvider:
    """A provider that answers through a double and holds a client to be closed."""

    def __init__(self, api_key: str, config: dict[str, Any]) -> None:
        self.api_key = api_key
        self.config = config
        self.client = Client()
        self._double = MockProvider(name="my-provider")

    @property
    def name(self) -> str:
        return "my-provider"

    def get_info(self) -> ProviderInfo:
        return self._double.get_info()

    async def list_models(self) -> list[ModelInfo]:
        return await self._double.list_models()

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        return await self._double.complete(request, **kwargs)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return self._double.parse_tool_calls(response)


async def mount(coordinator: ModuleCoordinator, config: dict) -> Provider | Callable | None:
    api_key = config.get("api_key") or os.environ.get("MY_API_KEY")
    if not api_key:
        logger.warning("No API key - provider not mounted")
        return None

    provider = MyProvider(api_key=api_key, config=config)
    await coordinator.mount("providers", provider, name="my-provider")

    async def cleanup():
        await provider.client.close()

    return cleanup


def test_protocol_has_five_members() -> None:
    assert isinstance(MyProvider("k", {}), Provider)
    assert isinstance(vars(Provider)["name"], property)
    assert not inspect.iscoroutinefunction(Provider.get_info)
    assert inspect.iscoroutinefunction(Provider.list_models)
    assert inspect.iscoroutinefunction(Provider.complete)
    assert not inspect.iscoroutinefunction(Provider.parse_tool_calls)
    assert list(inspect.signature(Provider.complete).parameters) == ["self", "request", "kwargs"]
    assert list(inspect.signature(Provider.parse_tool_calls).parameters) == ["self", "response"]


async def test_mount_registers_and_cleanup_closes_client() -> None:
    session = seed_session(
        providers={"my-provider": mount}, configs={"my-provider": {"api_key": "k", "debug": True}}
    )
    async with session:
        provider = session.coordinator.get("providers", "my-provider")
        assert isinstance(provider, MyProvider)
        assert provider.config == {"api_key": "k", "debug": True}
        assert provider.client.is_open
    assert not provider.client.is_open


async def test_provider_without_key_declines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MY_API_KEY", raising=False)
    async with seed_session(providers={"my-provider": mount}) as session:
        assert session.coordinator.get("providers") == {}
        assert session.failures == []
    assert "No API key - provider not mounted" in caplog.messages
