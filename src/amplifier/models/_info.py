"""Descriptions of modules, providers and models, and the status of a session."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import attrs

from ._base import Model, checked, converter_module, model

ModuleType: TypeAlias = Literal["orchestrator", "provider", "tool", "context", "hook", "resolver"]
"""The kinds of modules."""

ConfigFieldType: TypeAlias = Literal["text", "secret", "choice", "boolean"]
"""How a user is asked for a configuration value."""

SessionState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""State of a session, or of its last turn."""

_CURRENCY = re.compile(r"[A-Z]{3}")


def _currency(code: str) -> str:
    if _CURRENCY.fullmatch(code) is None:
        raise ValueError(f"expected a currency code of three capital letters (ISO 4217), got {code[:20]!r}")
    return code


@model
class Pricing(Model):
    """What a model costs, per million tokens.

    Attributes:
        currency: Three capital letters, as in ISO 4217.
    """

    input_per_million: float
    output_per_million: float
    cache_read_per_million: float | None = None
    cache_write_per_million: float | None = None
    currency: str = checked(_currency, default="USD")


@model
class ModelInfo(Model):
    """One language model a provider offers.

    Attributes:
        id: Its name in requests.
        display_name: For people.
        context_window: Tokens of request and response together.
        max_output_tokens: The limit of a response.
        capabilities: Words such as ``"tools"``, ``"streaming"``, ``"thinking"``, ``"vision"``.
        defaults: Settings that suit it.
        pricing: What it costs, if that is known.
    """

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str] = attrs.field(factory=list)
    defaults: dict[str, Any] = attrs.field(factory=dict)
    pricing: Pricing | None = None


@model
class ConfigField(Model):
    """One setting that a provider needs before it works.

    Attributes:
        id: Its key in the provider's config.
        display_name: For people.
        field_type: How to ask for it.
        prompt: The question.
        env_var: The environment variable that holds it, if there is one.
        choices: What to choose from, for ``"choice"``.
        required: Whether it works without.
        default: What to offer as the answer.
        show_when: Ask only if these other fields have these values.
        requires_model: Ask only after a model was chosen.
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
    """A provider: what it can do and which settings it needs.

    Attributes:
        id: Its name.
        display_name: For people.
        credential_env_vars: Environment variables that may hold its key.
        capabilities: Words such as ``"tools"`` and ``"streaming"``.
        defaults: Among others ``model``, ``context_window`` and ``max_output_tokens``, from which contexts compute their budget.
        config_fields: What to ask a user who sets it up.
    """

    id: str
    display_name: str
    credential_env_vars: list[str] = attrs.field(factory=list)
    capabilities: list[str] = attrs.field(factory=list)
    defaults: dict[str, Any] = attrs.field(factory=dict)
    config_fields: list[ConfigField] = attrs.field(factory=list)


@model
class ModuleInfo(Model):
    """A module that can be loaded.

    Attributes:
        id: Its name in mount plans.
        name: For people.
        version: Of the distribution it comes from.
        type: Its kind.
        mount_point: Where it is mounted.
        description: What it does, in a line.
        config_schema: JSON Schema of its config, if it has one.
    """

    id: str
    name: str
    version: str
    type: ModuleType
    mount_point: str
    description: str
    config_schema: dict[str, Any] | None = None


def _now() -> datetime:
    return datetime.now(UTC)


@model
class SessionStatus(Model):
    """The status of a session and its totals.

    Times are aware: the default is now in UTC, and one given without a time zone is taken as local time. The kernel
    counts nothing: the totals are for applications that do.

    Attributes:
        status: Of the session, or of its latest turn.
        last_activity: When the latest turn began.
        last_error: ``type`` and ``message`` of the latest failure.
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
    last_error: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, with times as ISO 8601 text and the cost as text."""
        written: dict[str, Any] = converter_module().converter().unstructure(self)
        return {name: value.copy() if type(value) is dict else value for name, value in written.items()}
