"""Descriptions of modules, providers and models, and the status of a session."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, TypeAlias

import attrs

from amplifier._internal.json import JSON

from .base import Model, model
from .fields import checked

ModuleType: TypeAlias = Literal["orchestrator", "provider", "tool", "context", "hook", "resolver"]
"""The type of a module."""

ConfigFieldType: TypeAlias = Literal["text", "secret", "choice", "boolean"]
"""The form in which a user enters a configuration value."""

SessionState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""State of a session or of its last turn."""

_CURRENCY = re.compile(r"[A-Z]{3}")


def _check_currency(code: str) -> str:
    if _CURRENCY.fullmatch(code) is None:
        expected = "expected a currency code of three capital letters (ISO 4217)"
        raise ValueError(f"{expected}, got {code[:20]!r}")
    return code


@model
class Pricing(Model):
    """The price of a model per million tokens.

    Attributes:
        currency: Currency of the prices, as the three capital letters of ISO 4217.
    """

    input_per_million: float
    output_per_million: float
    cache_read_per_million: float | None = None
    cache_write_per_million: float | None = None
    currency: str = checked(_check_currency, default="USD")


@model
class ModelInfo(Model):
    """One language model that a provider offers.

    Attributes:
        id: Name of the model in requests.
        display_name: Name of the model for people.
        context_window: Maximum number of tokens of request and response together.
        max_output_tokens: Maximum number of tokens of a response.
        capabilities: Words such as ``"tools"``, ``"streaming"``, ``"thinking"``, ``"vision"``.
        defaults: Settings that suit the model.
        pricing: Price of the model, or None if it is unknown.
    """

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str] = attrs.field(factory=list)
    defaults: dict[str, JSON] = attrs.field(factory=dict)
    pricing: Pricing | None = None


@model
class ConfigField(Model):
    """One setting that a provider needs before it works.

    Attributes:
        id: Key of the setting in the provider's config.
        display_name: Name of the setting for people.
        field_type: Form in which a user enters the value.
        prompt: Question to ask the user.
        env_var: Environment variable that may hold the value.
        choices: Values to choose from, for the type ``"choice"``.
        required: False if the provider works without the setting.
        default: Value to offer as the answer.
        show_when: Values of other fields. The question is shown only if all of them match.
        requires_model: True shows it only after the user chose a model.
    """

    id: str
    display_name: str
    field_type: ConfigFieldType = "text"
    prompt: str
    env_var: str | None = None
    choices: list[str] | None = None
    required: bool = True
    default: str | None = None
    show_when: dict[str, str] | None = None
    requires_model: bool = False


@model
class ProviderInfo(Model):
    """A provider with its capabilities and settings.

    Attributes:
        id: Name of the provider.
        display_name: Name of the provider for people.
        credential_env_vars: Environment variables that may hold the provider's key.
        capabilities: Words such as ``"tools"`` and ``"streaming"``.
        defaults: Settings such as ``model``, ``context_window`` and ``max_output_tokens``. Contexts
            compute their budget from them.
        config_fields: Settings to ask a user for.
    """

    id: str
    display_name: str
    credential_env_vars: list[str] = attrs.field(factory=list)
    capabilities: list[str] = attrs.field(factory=list)
    defaults: dict[str, JSON] = attrs.field(factory=dict)
    config_fields: list[ConfigField] = attrs.field(factory=list)


@model
class ModuleInfo(Model):
    """A module that can be loaded.

    Attributes:
        id: Name of the module in mount plans.
        name: Name of the module for people.
        version: Version of the distribution that contains the module.
        type: Type of the module.
        mount_point: Mount point for the module.
        description: One line about the module.
        config_schema: JSON Schema of the module's config, or None.
    """

    id: str
    name: str
    version: str
    type: ModuleType
    mount_point: str
    description: str
    config_schema: dict[str, JSON] | None = None


def _now() -> datetime:
    return datetime.now(UTC)


@model
class SessionStatus(Model):
    """The status of a session and its totals.

    Times are aware: the default is now in UTC, and a time without a time zone is read as local
    time. The kernel doesn't count anything: the totals are for applications that do.

    Attributes:
        status: State of the session, or of its latest turn.
        last_activity: Start of the latest turn, or None before the first one.
        last_error: ``type`` and ``message`` of the latest failure, or None.
    """

    session_id: str
    started_at: datetime = attrs.field(factory=_now)
    ended_at: datetime | None = None
    status: SessionState = "running"
    total_messages: int = 0
    tool_invocations: int = 0
    tool_successes: int = 0
    tool_failures: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    cost_usd: Decimal | None = None
    last_activity: datetime | None = None
    last_error: dict[str, JSON] | None = None

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields that are set, with times as ISO 8601 text and the cost as text."""
        # cattrs takes longer to import than this package.
        from ._converter import converter  # noqa: PLC0415

        written: dict[str, JSON] = converter().unstructure(self)
        for name, value in written.items():
            if type(value) is dict:
                written[name] = value.copy()
        return written
