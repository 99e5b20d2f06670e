"""Fields that OpenAI's two APIs have in common."""

from __future__ import annotations

from typing import Any

from amplifier.errors import InvalidRequestError
from amplifier.models import ImageBlock

from .._llm_provider import TokenCounts

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where Chat Completions servers put a model's reasoning; the official API has no such field."""


def image_url(block: ImageBlock) -> str:
    """The URL of an image; base64 data becomes a data URL.

    Raises:
        InvalidRequestError: The source contains neither.
    """
    source = block.source
    url = source.get("url") or source.get("image_url")
    if isinstance(url, str):
        return url
    data = source.get("data")
    if isinstance(data, str):
        return f"data:{source.get('media_type') or 'image/png'};base64,{data}"
    raise InvalidRequestError(
        f"an image's source has neither url nor data, only {sorted(source)}; expected base64 data or a URL"
    )


def count_tokens(token_counts: TokenCounts, usage: dict[str, Any] | None, *, input_name: str, output_name: str) -> None:
    """Copy the service's token counts; the APIs use different names for them."""
    if not usage:
        return
    input_details = usage.get(f"{input_name}_tokens_details") or {}
    output_details = usage.get(f"{output_name}_tokens_details") or {}
    token_counts.input_tokens = usage.get(f"{input_name}_tokens") or 0
    token_counts.output_tokens = usage.get(f"{output_name}_tokens") or 0
    token_counts.cache_read_tokens = input_details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    token_counts.cache_write_tokens = input_details.get("cache_write_tokens")
    token_counts.reasoning_tokens = output_details.get("reasoning_tokens")
    token_counts.is_reported = True
