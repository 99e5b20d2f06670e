"""The mount plan as the kernel sees it: the grammar of ids, and plain records, keyword-only, whose fields declare what a plan may have there.

The reader and the JSON Schema are made from these declarations; the texts are what editors and the reference page show.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal, TypeGuard, final

import attrs

from .._internal.reading import (
    Kind,
    anything,
    choice,
    flag,
    mapping_each,
    number,
    object_with,
    option,
    optional,
    record,
    show,
    texts,
    whole_number,
)
from ..errors import PlanError

MODULE_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# No leading dot: such a name is hidden on most systems, and "." and ".." are directories.
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")
_FIRST_WORD_TO_TYPE: Final = {
    "orchestrator": "orchestrator",
    "loop": "orchestrator",
    "provider": "provider",
    "tool": "tool",
    "tools": "tool",
    "hook": "hook",
    "hooks": "hook",
    "context": "context",
    "resolver": "resolver",
}
MODULE_ID_RULE = "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', at most 64 in all"


def is_module_id(text: object) -> TypeGuard[str]:
    """Whether this can be the id of a module: it becomes part of paths and package names, so the grammar is narrow."""
    return type(text) is str and MODULE_ID.fullmatch(text) is not None


def type_from_id(module_id: str) -> str | None:
    """The kind of module that an id's first word names, or None.

    Only the first word counts: ``hooks-tool-x`` is a hook about tools. When it names no kind there is no guess; the
    section of the mount plan that lists the module decides.
    """
    return _FIRST_WORD_TO_TYPE.get(re.split("[-_]", module_id, maxsplit=1)[0])


def validate_session_id(text: object) -> str:
    """Return the session id, or raise a `PlanError`: it names files and appears in logs, so it can be no path."""
    if type(text) is str and _SESSION_ID.fullmatch(text):
        return text
    rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
    raise PlanError([("", f"{rule}, got {show(text)}")], subject="invalid session id")


def new_session_id() -> str:
    """A random UUID as text."""
    return str(uuid.uuid4())


LONGEST_DEADLINE: Final = (
    1e10  # 300 years: above it the clocks of event loops lose their precision or overflow
)
_MOST: Final = 10**15
_AMOUNT: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
# Of this one character, white space to a schema and none to Python, a name may consist.
_NOT_BLANK: Final = r"[\S\uFEFF]"


def _setting(kind: Kind, default: Any, doc: str) -> Any:
    """An option for which null is as good as no value."""

    def convert(value: Any) -> Any:
        if value is not None:
            return kind.convert(value)
        return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]  # a class at run time

    return option(
        attrs.evolve(optional(kind), expected=kind.expected, convert=convert), default, doc
    )


def _is_amount(value: Any) -> bool:
    if type(value) is int:
        return 0 <= value <= _MOST
    if type(value) in (float, Decimal) or (type(value) is str and _AMOUNT.fullmatch(value)):
        amount = Decimal(str(value))  # through text, because 0.1 has no exact binary form
        return amount.is_finite() and 0 <= amount <= _MOST
    return False


def _checked_source(source: Any) -> Any:
    """A source that pins a distribution has to name it; any other form is up to the resolver."""
    if type(source) is dict and source.keys() == {"distribution"}:
        _distribution.read(source)
    return source


_seconds = attrs.evolve(
    number(0, LONGEST_DEADLINE, above=True), expected="seconds, more than 0", convert=float
)
_no_limit_or_seconds = optional(_seconds, null="for no limit")
_limit = optional(
    attrs.evolve(whole_number(0), expected="a whole number, 0 or more"), null="for no limit"
)
_amount = Kind(
    "an amount of money, 0 or more, such as 0.5 or '0.50'",
    _is_amount,
    lambda value: Decimal(str(value)),
    schema={
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": f"^{_AMOUNT.pattern}$"},
        ]
    },
)
_currency = Kind(
    "a currency code of three capital letters, such as 'USD'",
    lambda value: type(value) is str and _CURRENCY.fullmatch(value) is not None,
    schema={"type": "string", "pattern": f"^{_CURRENCY.pattern}$"},
)
_name = Kind(
    "a name",
    lambda value: type(value) is str and bool(value.strip()),
    schema={"type": "string", "pattern": _NOT_BLANK},
)
mapping: Kind = Kind(
    "a mapping",
    lambda value: type(value) is dict or isinstance(value, Mapping),
    # A module's config is the very dict of the plan. An object may lie about its class.
    lambda value: value if issubclass(type(value), dict) else dict(value),
    schema={"type": "object"},
)
module_id: Kind = Kind(
    MODULE_ID_RULE.removeprefix("expected "),
    is_module_id,
    schema={"type": "string", "pattern": f"^{MODULE_ID.pattern}$"},
)
_distribution = object_with(
    {"distribution": attrs.evolve(_name, expected="the name of an installed distribution")}
)
source: Kind = Kind(
    "a source",
    lambda value: True,
    _checked_source,
    schema={
        "if": {"type": "object", "required": ["distribution"], "maxProperties": 1},
        "then": {"properties": {"distribution": _name.schema}},
    },
)


@final
@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds the kernel waits for code it did not write; None means no limit, on purpose."""

    mount: float | None = option(_no_limit_or_seconds, 120.0, "Mounting one module.")
    ready: float | None = option(_no_limit_or_seconds, 60.0, "on_session_ready of one module.")
    hook: float | None = option(
        _no_limit_or_seconds,
        300.0,
        "One handler of an event; long, because an approval may wait inside one.",
    )
    contribution: float | None = option(_no_limit_or_seconds, 10.0, "One contributor of a channel.")
    collection: float | None = option(
        _no_limit_or_seconds, 30.0, "All contributors of a channel together."
    )
    cleanup: float | None = option(_no_limit_or_seconds, 10.0, "One cleanup.")
    teardown: float | None = option(_no_limit_or_seconds, 30.0, "The whole closing of a session.")
    turn: float | None = option(_no_limit_or_seconds, None, "One turn.")


DEFAULT_DEADLINES: Final = Deadlines()
DEADLINE_NAMES: Final = tuple(field.name for field in attrs.fields(Deadlines))


@final
@attrs.frozen(kw_only=True)
class TokenPrice:
    """What a model costs, per million tokens, in the currency of the budget."""

    input_per_million: Decimal = option(_amount, doc="Of the request.")
    output_per_million: Decimal = option(_amount, doc="Of the answer.")


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

    tokens: int | None = option(
        _limit, None, "Input and output tokens of all model calls. null: no limit."
    )
    cost: Decimal | None = option(
        optional(_amount, null="for no limit"),
        None,
        "The price of all model calls, as a number or as text. null: no limit.",
    )
    currency: str = _setting(
        _currency,
        "USD",
        "Of the cost. Providers report US dollars; for another currency, give prices.",
    )
    model_calls: int | None = option(
        _limit, None, "Calls of models; every attempt counts. null: no limit."
    )
    tool_calls: int | None = option(_limit, None, "Calls of tools. null: no limit.")
    seconds: float | None = option(
        _no_limit_or_seconds, None, "Time in which turns run. null: no limit."
    )
    warn_at: float | None = option(
        optional(
            attrs.evolve(
                number(0, 1, above=True),
                expected="a share, more than 0 and at most 1",
                convert=float,
            ),
            null="for no warnings",
        ),
        0.8,
        "The share of a limit at which budget:warning is emitted.",
    )
    unknown_price: Literal["refuse", "allow"] = _setting(
        attrs.evolve(choice("refuse", "allow"), expected="'refuse' or 'allow'"),
        "refuse",
        "Whether a model without a known price may be called where cost is limited.",
    )
    prices: Mapping[str, TokenPrice] = _setting(
        mapping_each(
            "a mapping of model names to prices",
            record(TokenPrice, "a mapping of input_per_million and output_per_million"),
        ),
        attrs.Factory(dict),
        "Prices by model name, instead of those that providers know; `*` is for all other models.",
    )


BUDGET: Final = record(
    BudgetLimits, f"a mapping of limits by name ({', '.join(attrs.fields_dict(BudgetLimits))})"
)


@final
@attrs.define(kw_only=True)
class ModuleSpec:
    """One module the plan asks for.

    Attributes:
        source: For the source resolver; opaque to the kernel.
        config: The very dict that the plan holds, or an empty one.
        instance_id: The name a provider is mounted under, when one module is mounted several times.
        on_failure: What a failing handler of this hook module means.
        path: Its path in the plan: ``$.tools[0]``.
        thing: The module itself, where the plan has a function, an instance or a mount function in place of an id.
    """

    module: str = option(module_id, doc="The module's id.")
    source: Any = option(
        source,
        None,
        'Where the module comes from. `"builtin"` pins the module of this package, `{"distribution": NAME}` that of an '
        "installed distribution, where several have the id. Anything else is read by the source resolver; without one it is a "
        "path.",
    )
    config: dict[str, Any] = _setting(
        mapping,
        attrs.Factory(dict),
        "Handed to the module's mount(); its keys are defined by the module.",
    )
    instance_id: str | None = option(
        attrs.evolve(optional(_name), expected="a name"),
        None,
        "The name to mount it under; needed when one module is mounted several times.",
    )
    on_failure: Literal["continue", "deny"] = _setting(
        attrs.evolve(choice("continue", "deny"), expected="'continue' or 'deny'"),
        "continue",
        "What a handler that fails or is late means: it is skipped, or it denies (a gate). A gate that returns None denies, too.",
    )
    path: str = "$"
    thing: Any = None


_places = attrs.evolve(
    texts(), schema={"type": "array", "items": {"type": "string", "minLength": 1}}
)


@final
@attrs.frozen(kw_only=True)
class ProtectedPlaceChanges:
    """Changes to the list of places that an agent may change only if a person allows it."""

    add: tuple[str, ...] = option(
        _places,
        (),
        "Further places: names at any depth, such as `deploy.key` or `ci/secrets`, or absolute paths.",
    )
    allow: tuple[str, ...] = option(
        _places,
        (),
        "Places that are not asked about, in the same form. The agent's own code stays protected.",
    )


@attrs.define(kw_only=True)
class SessionSettings:
    """The settings in the plan's section ``session``, without its two modules; their options say what each means."""

    strict: bool = _setting(
        flag, False, "Any module that cannot be used is fatal, not only loop, context and gates."
    )
    deadlines: Deadlines = _setting(
        record(Deadlines, f"a mapping of seconds by name ({', '.join(DEADLINE_NAMES)})"),
        attrs.Factory(Deadlines),
        "Seconds the kernel waits for code it did not write; null is no limit.",
    )
    injection_budget_per_turn: int | None = option(
        _limit, None, "Tokens that hooks may inject in one turn before a warning. null: no limit."
    )
    injection_size_limit: int | None = option(
        _limit, None, "Characters of one injection before it is refused. null: no limit."
    )
    budget: BudgetLimits | None = _setting(
        BUDGET, None, "What the session and all its children together may use; null is no limit."
    )
    protected_places: ProtectedPlaceChanges | None = _setting(
        record(ProtectedPlaceChanges, "a mapping with add and allow"),
        None,
        "Changes to the list of places that tools change only if a person allows it; the modules read it.",
    )
    metadata: Any = option(
        anything, None, "The application's own data, sent along with session events."
    )
    raw: bool = _setting(flag, False, "Session events carry the plan, secrets taken out.")


@final
@attrs.define(kw_only=True)
class MountPlan(SessionSettings):
    """A plan that was read without problems; modules are in mounting order.

    Attributes:
        agents: The application's own data, passed through.
        warnings: What is odd but not wrong, each beginning with its path.
    """

    orchestrator: ModuleSpec
    context: ModuleSpec
    providers: list[ModuleSpec]
    tools: list[ModuleSpec]
    hooks: list[ModuleSpec]
    agents: Any = None
    warnings: list[str] = attrs.Factory(list)
