"""Sound: needs a key, declines without one, lets two calls through at a time, and is closed by its cleanup."""

import logging
import os

import anyio

from amplifier import ChatResponse, ModelInfo, ProviderInfo, TextBlock, Usage
from amplifier.errors import AuthenticationError, ContentFilterError

__amplifier_module_type__ = "provider"

logger = logging.getLogger(__name__)


class SlotProvider:
    name = "slots"

    def __init__(self, key, hooks):
        self._key = key
        self._hooks = hooks
        self._slots = anyio.CapacityLimiter(2)
        self._is_open = True

    def get_info(self):
        return ProviderInfo(
            id="slots",
            display_name="Slots",
            credential_env_vars=["SLOTS_API_KEY"],
            defaults={"context_window": 32_000, "max_output_tokens": 2_000},
        )

    async def list_models(self):
        return [ModelInfo(id="slots", display_name="Slots", context_window=32_000, max_output_tokens=2_000)]

    async def complete(self, request, **kwargs):
        if not self._is_open:
            raise AuthenticationError("the provider is closed", provider=self.name)
        async with self._slots:
            await anyio.sleep(0.001)
            words = [word for message in request.messages for word in self._words(message)]
            if "forbidden" in words:
                raise ContentFilterError("such words are not allowed", provider=self.name)
        text = f"{len(words)} words, the last of them {words[-1] if words else 'missing'}"
        usage = Usage(input_tokens=len(words), output_tokens=8, total_tokens=len(words) + 8)
        about = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        await self._hooks.emit("llm:response", {"provider": self.name, "usage": about})
        return ChatResponse(content=[TextBlock(text=text)], usage=usage)

    @staticmethod
    def _words(message):
        parts = [message.content] if isinstance(message.content, str) else [str(block) for block in message.content]
        return " ".join(parts).split()

    def parse_tool_calls(self, response):
        return response.tool_calls or []

    async def close(self):
        self._is_open = False


async def mount(coordinator, config):
    key = config.get("api_key") or os.environ.get("SLOTS_API_KEY")
    if not key:
        logger.warning("no API key for slots; the provider is not mounted")
        return None
    provider = SlotProvider(key, coordinator.hooks)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.close
