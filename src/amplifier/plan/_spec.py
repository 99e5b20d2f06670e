"""The mount plan as the kernel sees it: plain records, keyword-only."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal, final

import attrs


@final
@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds the kernel waits for code it did not write; None means no limit, on purpose."""

    mount: float | None = 120.0  # mounting one module
    ready: float | None = 60.0  # on_session_ready of one module
    hook: float | None = 300.0  # one handler; long, because an approval may wait inside one
    contribution: float | None = 10.0  # one contributor of a channel
    collection: float | None = 30.0  # all contributors of a channel together
    cleanup: float | None = 10.0  # one cleanup
    teardown: float | None = 30.0  # the whole closing of a session
    turn: float | None = None  # one turn


@final
@attrs.frozen(kw_only=True)
class TokenPrice:
    """What a model costs, per million tokens, in the currency of the budget."""

    input_per_million: Decimal
    output_per_million: Decimal


@final
@attrs.frozen(kw_only=True)
class BudgetLimits:
    """What a session and all its children together may use; None is no limit.

    Attributes:
        tokens: Input and output tokens of all model calls.
        cost: The price of all model calls, in ``currency``.
        currency: Three capital letters. Providers report US dollars; with another currency, ``prices`` are needed.
        model_calls: Calls of models; every attempt counts.
        tool_calls: Calls of tools.
        seconds: Time in which turns run.
        warn_at: The share of a limit at which ``budget:warning`` is emitted; None for no warnings.
        unknown_price: Whether a model without a known price is refused where ``cost`` is limited.
        prices: Prices by model name; they take precedence over those that providers know. ``"*"`` is for all other models.
    """

    tokens: int | None = None
    cost: Decimal | None = None
    currency: str = "USD"
    model_calls: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    warn_at: float | None = 0.8
    unknown_price: Literal["refuse", "allow"] = "refuse"
    prices: Mapping[str, TokenPrice] = attrs.Factory(dict)


@final
@attrs.define(kw_only=True)
class ModuleSpec:
    """One module the plan asks for."""

    module: str
    source: Any = None  # for the source resolver; opaque to the kernel
    config: dict[str, Any] = attrs.Factory(dict)  # the very dict the plan holds, or an empty one
    instance_id: str | None = None  # the name a provider is mounted under, when one module is mounted several times
    on_failure: Literal["continue", "deny"] = "continue"  # what a failing handler of this hook module means
    path: str = "$"  # its path in the plan: $.tools[0]


@final
@attrs.define(kw_only=True)
class MountPlan:
    """A plan that was read without problems; modules are in mounting order."""

    orchestrator: ModuleSpec
    context: ModuleSpec
    providers: list[ModuleSpec]
    tools: list[ModuleSpec]
    hooks: list[ModuleSpec]
    agents: Any = None  # the application's own data, passed through
    strict: bool = False  # any failing module is fatal
    deadlines: Deadlines = Deadlines()
    injection_budget_per_turn: int | None = None  # tokens per turn before a warning; None is no limit
    injection_size_limit: int | None = None  # characters in one injection before an error; None is no limit
    budget: BudgetLimits | None = None  # what the session and its children may use
    metadata: Any = None  # the application's own data, sent along with session events
    raw: bool = False  # session events carry the (redacted) plan
    warnings: list[str] = attrs.Factory(list)  # what is odd but not wrong, each beginning with its path


DEFAULT_DEADLINES: Final = Deadlines()
DEADLINE_NAMES: Final = tuple(field.name for field in attrs.fields(Deadlines))
LONGEST_DEADLINE: Final = 1e10  # 300 years: above it the clocks of event loops lose their precision or overflow
