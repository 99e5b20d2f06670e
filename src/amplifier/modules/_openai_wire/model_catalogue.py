"""OpenAI's models: their limits by name, and how to read a list of models in OpenAI's format."""

from __future__ import annotations

import re
from typing import Any, final

from amplifier.models import ModelInfo

DEFAULT_MODEL = "gpt-5.6-sol"

_CAPABILITIES = ["tools", "streaming", "thinking", "vision", "json_mode"]

# Pattern, context window, output tokens; the first that matches counts.
_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"gpt-(5\.[4-9]|[6-9])(?!.*(mini|nano))", 1_050_000, 128_000),
    (r"gpt-5", 400_000, 128_000),
    (r"gpt-4\.1", 1_047_576, 32_768),
    (r"gpt-4o|chatgpt-4o", 128_000, 16_384),
    (r"gpt-4-turbo", 128_000, 4_096),
    (r"gpt-4", 8_192, 4_096),
    (r"gpt-3\.5", 16_385, 4_096),
    (r"gpt-oss", 131_072, 32_768),
    (r"o[134](-|$)", 200_000, 100_000),
)
_UNKNOWN = (128_000, 16_384)
_KNOWN = ("gpt-6.1-sol", "gpt-6.1-terra", "gpt-5.6-sol", "gpt-5.6-luna", "gpt-5.4-mini", "gpt-4.1")


@final
class OpenAIModels:
    """The catalogue of provider-openai."""

    path = "/models"

    def known(self) -> list[ModelInfo]:
        """Models to list if the service cannot be asked."""
        return [self.look_up(model) for model in _KNOWN]

    def look_up(self, model: str) -> ModelInfo:
        """The properties of a model, derived from its name."""
        window, output = next(((w, o) for pattern, w, o in _SIZES if re.match(pattern, model)), _UNKNOWN)
        return ModelInfo(
            id=model,
            display_name=model,
            context_window=window,
            max_output_tokens=output,
            capabilities=list(_CAPABILITIES),
        )

    def read(self, body: Any) -> list[ModelInfo]:
        """Read the service's list of models."""
        return [self.look_up(given["id"]) for given in body["data"]]


@final
class ConfiguredModels:
    """The catalogue of a server with unknown models, described by the configuration.

    Args:
        default_model: The configured model.
        context_window: Its context window.
        max_tokens: Its limit on output tokens.
    """

    path = "/models"

    def __init__(self, default_model: str, context_window: int, max_tokens: int) -> None:
        self._default_model = default_model
        self._context_window = context_window
        self._max_tokens = max_tokens

    def known(self) -> list[ModelInfo]:
        """The configured model."""
        return [self.look_up(self._default_model)]

    def look_up(self, model: str) -> ModelInfo:
        """The configured properties, for any model."""
        return ModelInfo(
            id=model,
            display_name=model,
            context_window=self._context_window,
            max_output_tokens=self._max_tokens,
            capabilities=["tools", "streaming"],
        )

    def read(self, body: Any) -> list[ModelInfo]:
        """Read the server's list; some servers include the context window."""
        models = []
        for given in body["data"]:
            known = self.look_up(given["id"])
            window = given.get("max_model_len") or given.get("context_length") or (given.get("meta") or {}).get("n_ctx")
            if isinstance(window, int) and window > 0:
                known.context_window = window
            models.append(known)
        return models
