"""The cost of a response, from the data in the package genai-prices; nothing is downloaded.

Importing it takes a third of a second, so the worker thread that builds a provider's client loads it.
"""

from __future__ import annotations

import importlib
import logging
from decimal import Decimal
from typing import Any, final

from .response_reader import TokenCounts

logger = logging.getLogger("amplifier.modules.provider")


@final
class Prices:
    """Prices of one provider's models.

    Args:
        provider_id: The provider as genai-prices names it; None if only its URL is known.
        api_url: The URL of its API.
    """

    def __init__(self, provider_id: str | None, api_url: str | None = None) -> None:
        self._where = {"provider_id": provider_id} if provider_id else {"provider_api_url": api_url}
        self._library: Any = None

    def load(self) -> None:
        """Import the library and let it read its data; blocks. Without the library no cost is known."""
        try:
            self._library = importlib.import_module("genai_prices")
        except ImportError:
            return
        self.cost("gpt-4o", TokenCounts(input_tokens=1, output_tokens=1))

    def most(self, model: str, input_tokens: int, output_tokens: int) -> Decimal | None:
        """The most that so many tokens may cost in US dollars; None if unknown. Writing input into a cache may cost extra."""
        written = TokenCounts(input_tokens=input_tokens, output_tokens=output_tokens, cache_write_tokens=input_tokens)
        plain = self.cost(model, TokenCounts(input_tokens=input_tokens, output_tokens=output_tokens))
        return None if plain is None else max(plain, self.cost(model, written) or plain)

    def cost(self, model: str, token_counts: TokenCounts) -> Decimal | None:
        """The price in US dollars; None if unknown. Never raises."""
        if self._library is None or not model:
            return None
        counted = {
            "input_tokens": token_counts.input_tokens,
            "output_tokens": token_counts.output_tokens,
            "cache_read_tokens": token_counts.cache_read_tokens,
            "cache_write_tokens": token_counts.cache_write_tokens,
        }
        try:
            usage = self._library.Usage(**{name: count for name, count in counted.items() if count})
            price = self._library.calc_price(usage, model_ref=model, **self._where).total_price
        except LookupError:
            return None
        except Exception:  # third-party code; a missing price must not fail a response
            logger.debug("no price for model %r", model, exc_info=True)
            return None
        return price if isinstance(price, Decimal) else None
