"""Names of models, such as ``"openai:gpt-5"``, for `agent`, the command line and ``/model``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from amplifier._internal.reading import show
from amplifier._internal.spelling import did_you_mean, nearest, suggestion
from amplifier.errors import PlanError

MODEL_EXAMPLES = (
    "'provider:model', such as 'anthropic:claude-sonnet-4-5', 'openai:gpt-5', "
    "'openai-compatible:MODEL@URL' or 'offline'"
)
LOCAL_MODEL_ADVICE = (
    "provider-local was removed: serve the model with Ollama or llama.cpp's server and use "
    "provider-openai-compatible, with 'openai-compatible:MODEL@http://127.0.0.1:8080/v1' as the "
    "model or with that address as base_url in a plan"
)
"""The replacements for provider-local and for the path of a model file."""

_PROVIDERS = ("anthropic", "openai", "openai-compatible", "offline", "mock")
_PREFIX = "provider-"
_WITHOUT_MODEL = ("offline", "mock")
_FORMS = {
    "offline": "'offline' alone",
    "mock": "'mock' alone",
    "openai-compatible": "'openai-compatible:MODEL@URL'",
}
_FAMILIES = {"claude": "anthropic", "gpt": "openai"}


@attrs.frozen(kw_only=True)
class ModelName:
    """A model as a user names it.

    Attributes:
        provider: The module id of the provider, such as ``provider-openai``.
        model: The model to request, or None for the provider's default.
        config: Settings of the provider for this model, as in a plan.
    """

    provider: str
    model: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict)

    @property
    def entry(self) -> dict[str, Any]:
        """The provider's entry in a plan."""
        return {"module": self.provider, **({"config": self.config} if self.config else {})}


def names_provider(name: str, is_installed: Callable[[str], bool]) -> bool:
    """Return whether the name of a model begins with a provider, as in ``openai:gpt-5``."""
    provider, colon, _ = (part.strip() for part in name.partition(":"))
    return provider in _PROVIDERS or bool(colon and is_installed(f"{_PREFIX}{provider}"))


def is_local_model(name: str, is_installed: Callable[[str], bool]) -> bool:
    """Return whether a name is meant for provider-local, such as ``local`` or a GGUF file."""
    if names_provider(name, is_installed):
        return False
    return name.partition(":")[0].strip() == "local" or name.strip().lower().endswith(".gguf")


def family_provider(model: str) -> str | None:
    """Return the id of the provider for a model such as ``gpt-5``, or None if it is unknown."""
    family = _FAMILIES.get(model.partition("-")[0].lower())
    return None if family is None else f"{_PREFIX}{family}"


def read_model_name(name: str, is_installed: Callable[[str], bool]) -> ModelName:
    """Read the name of a model with its provider.

    Raises:
        PlanError: The provider or the model is missing. The message suggests a correction.
    """
    provider, _, rest = (part.strip() for part in name.partition(":"))
    if is_local_model(name, is_installed):
        form = "'openai-compatible:MODEL@URL'"
        raise PlanError([("$", f"expected {form}, got {show(name)}; {LOCAL_MODEL_ADVICE}")])
    if not names_provider(name, is_installed) or (not rest and provider not in _PROVIDERS):
        hint = _suggest_model(name)
        raise PlanError([("$", f"expected {MODEL_EXAMPLES}, got {show(name)}{hint}")])
    model, _, url = rest.partition("@") if provider == "openai-compatible" else (rest, "", "no")
    if bool(model and url) == (provider in _WITHOUT_MODEL):
        form = _FORMS.get(provider, f"a model after {provider!r}, as in '{provider}:MODEL'")
        raise PlanError([("$", f"expected {form}, got {show(name)}")])
    module_id = f"{_PREFIX}{provider}"
    if not rest:
        return ModelName(provider=module_id)
    config: dict[str, Any] = {"default_model": model}
    if provider == "openai-compatible":
        config["base_url"] = url
    return ModelName(provider=module_id, model=model, config=config)


def _suggest_model(name: str) -> str:
    """Return the suggestion at the end of a message about a model with an unknown provider."""
    provider, separator, rest = (part.strip() for part in name.replace("/", ":", 1).partition(":"))
    if not separator:
        family = family_provider(provider)
        if family is None:
            return suggestion(provider, ("offline",))
        return f"; {did_you_mean(f'{family.removeprefix(_PREFIX)}:{provider}')}"
    near = nearest(provider, _PROVIDERS)
    return "" if near is None else f"; {did_you_mean(f'{near}:{rest}')}"
