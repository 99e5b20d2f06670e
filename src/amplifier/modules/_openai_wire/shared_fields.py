"""Pieces of both of OpenAI's APIs that look alike; pure."""

from __future__ import annotations

from typing import Any

from amplifier.errors import InvalidRequestError
from amplifier.models import ImageBlock

from .._llm_provider import TokenCounts


def image_url(block: ImageBlock) -> str:
    """An image's address; one that is held as base64 becomes a data address.

    Raises:
        InvalidRequestError: The source says neither.
    """
    source = block.source
    url = source.get("url") or source.get("image_url")
    if isinstance(url, str):
        return url
    data = source.get("data")
    if isinstance(data, str):
        return f"data:{source.get('media_type') or 'image/png'};base64,{data}"
    raise InvalidRequestError(
        f"an image's source has neither url nor data, only {sorted(source)}; expected base64 data or an address"
    )


def count_tokens(token_counts: TokenCounts, usage: dict[str, Any] | None, *, asked: str, answered: str) -> None:
    """Take the service's counts, under whichever names the API has for them."""
    if not usage:
        return
    into = usage.get(f"{asked}_tokens_details") or {}
    out = usage.get(f"{answered}_tokens_details") or {}
    token_counts.input_tokens = usage.get(f"{asked}_tokens") or 0
    token_counts.output_tokens = usage.get(f"{answered}_tokens") or 0
    token_counts.cache_read_tokens = into.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    token_counts.cache_write_tokens = into.get("cache_write_tokens")
    token_counts.reasoning_tokens = out.get("reasoning_tokens")
    token_counts.is_reported = True
