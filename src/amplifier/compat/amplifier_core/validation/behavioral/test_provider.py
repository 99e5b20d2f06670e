"""The behavioural suite of providers, for a module's tests to inherit from."""

from __future__ import annotations

from typing import Any

import pytest

from ...message_models import ChatResponse, TextBlock
from ...models import ProviderInfo

__all__ = ["ProviderBehaviorTests"]


class ProviderBehaviorTests:
    """Checks any provider, whatever its service."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, provider_module: Any) -> None:
        """Check that mounting gives a provider."""
        assert provider_module is not None

    @pytest.mark.asyncio
    async def test_get_info_returns_valid_provider_info(self, provider_module: Any) -> None:
        """Check that it describes itself."""
        info = provider_module.get_info()
        assert isinstance(info, ProviderInfo), f"get_info() must return ProviderInfo, got {info!r}"
        assert info.id, "a provider's info needs an id"
        assert info.display_name, "a provider's info needs a display name"

    @pytest.mark.asyncio
    async def test_list_models_returns_list(self, provider_module: Any) -> None:
        """Check that it lists its models."""
        models = await provider_module.list_models()
        assert isinstance(models, list), f"list_models() must return a list, got {models!r}"

    @pytest.mark.asyncio
    async def test_provider_has_name_attribute(self, provider_module: Any) -> None:
        """Check that it has a name."""
        name = getattr(provider_module, "name", None)
        assert isinstance(name, str), f"a provider's name must be a str, got {name!r}"
        assert name, "a provider's name must not be empty"

    @pytest.mark.asyncio
    async def test_parse_tool_calls_returns_list(self, provider_module: Any) -> None:
        """Check that a response without tool calls gives a list."""
        calls = provider_module.parse_tool_calls(ChatResponse(content=[TextBlock(text="Hello")]))
        assert isinstance(calls, list), f"parse_tool_calls() must return a list, got {calls!r}"
