"""The mount plan as records, whose fields declare the keys of a plan, and the grammar of ids.

The reader, the JSON Schema and the reference page are built from these declarations.
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
# A leading dot is not allowed: it hides files on most systems, and "." and ".." are directories.
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
MODULE_ID_RULE = (
    "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', "
    "at most 64 in all"
)


def is_module_id(text: object) -> TypeGuard[str]:
    """Return whether a value can be a module id.

    The grammar is narrow, because ids become part of paths and package names.
    """
    return type(text) is str and MODULE_ID.fullmatch(text) is not None


def type_from_id(module_id: str) -> str | None:
    """Return the module type that the first word of an id names, or None.

    ``hooks-tool-x`` is a hook about tools. If the first word names no type, the section of the
    mount plan that lists the module decides.
    """
    return _FIRST_WORD_TO_TYPE.get(re.split("[-_]", module_id, maxsplit=1)[0])


def validate_session_id(text: object) -> str:
    """Return a session id if it is valid.

    The id cannot be a path, because it is used in file names and logs.

    Raises:
        PlanError: The id is not valid.
    """
    if type(text) is str and _SESSION_ID.fullmatch(text):
        return text
    rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
    raise PlanError([("", f"{rule}, got {show(text)}")], subject="invalid session id")


def new_session_id() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


# This is 300 years. With longer deadlines, the clocks of event loops lose precision or overflow.
MAX_DEADLINE_SECONDS: Final = 1e10
_MAX_AMOUNT: Final = 10**15
_AMOUNT: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
# U+FEFF is white space to a schema but not to Python, so Python accepts a name that consists of it.
_NOT_BLANK: Final = r"[\S\uFEFF]"


def _setting(kind: Kind, default: Any, doc: str) -> Any:
    """Declare an option for which null means the default."""

    def convert(value: object) -> Any:
        if value is not None:
            return kind.convert(value)
        # attrs types Factory as a function, but it is a class at run time.
        is_factory = isinstance(default, attrs.Factory)  # type: ignore[arg-type]
        return default.factory() if is_factory else default

    nullable = attrs.evolve(optional(kind), expected=kind.expected, convert=convert)
    return option(nullable, default, doc)


def _is_amount(value: object) -> bool:
    if type(value) is int:
        return 0 <= value <= _MAX_AMOUNT
    if type(value) in (float, Decimal) or (type(value) is str and _AMOUNT.fullmatch(value)):
        # Converted through text, because 0.1 has no exact binary form.
        amount = Decimal(str(value))
        return amount.is_finite() and 0 <= amount <= _MAX_AMOUNT
    return False


def _check_source(source: Any) -> Any:
    """Check a source that pins a distribution. Any other form is up to the resolver."""
    if type(source) is dict and source.keys() == {"distribution"}:
        _distribution.read(source)
    return source


_seconds = attrs.evolve(
    number(0, MAX_DEADLINE_SECONDS, above=True), expected="seconds, more than 0", convert=float
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
    # The config of a module stays the dict of the plan itself. ``type`` is used because an object
    # may report another class.
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
    _check_source,
    schema={
        "if": {"type": "object", "required": ["distribution"], "maxProperties": 1},
        "then": {"properties": {"distribution": _name.schema}},
    },
)


@final
@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds that the kernel waits for code it did not write. None means no limit."""

    mount: float | None = option(_no_limit_or_seconds, 120.0, "Mounting one module.")
    ready: float | None = option(_no_limit_or_seconds, 60.0, "on_session_ready of one module.")
    hook: float | None = option(
        _no_limit_or_seconds,
        300.0,
        "One handler of an event. The default is long, because approvals wait inside handlers.",
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
    """The price of a model, per million tokens, in the currency of the budget."""

    input_per_million: Decimal = option(_amount, doc="Price of input tokens.")
    output_per_million: Decimal = option(_amount, doc="Price of output tokens.")


@final
@attrs.frozen(kw_only=True)
class BudgetLimits:
    """Limits for a session and all its children together. None means no limit.

    Attributes:
        tokens: Input and output tokens of all model calls.
        cost: The price of all model calls, in ``currency``.
        currency: Three capital letters. Providers report US dollars, so another currency needs
            ``prices``.
        model_calls: Calls of models. Every attempt counts.
        tool_calls: Calls of tools.
        seconds: Time in which turns run.
        warn_at: The share of a limit at which ``budget:warning`` is emitted, or None for no
            warnings.
        unknown_price: Whether a model without a known price is refused if ``cost`` is limited.
        prices: Prices by model name. They take precedence over the prices that providers report.
            ``"*"`` stands for all other models.
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
        "Currency of the cost. Providers report US dollars. Another currency needs prices.",
    )
    model_calls: int | None = option(
        _limit, None, "Calls of models. Every attempt counts. null: no limit."
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
        "Whether a model without a known price may be called if cost is limited.",
    )
    prices: Mapping[str, TokenPrice] = _setting(
        mapping_each(
            "a mapping of model names to prices",
            record(TokenPrice, "a mapping of input_per_million and output_per_million"),
        ),
        attrs.Factory(dict),
        "Prices by model name, instead of those that providers report. "
        "`*` is for all other models.",
    )


BUDGET: Final = record(
    BudgetLimits, f"a mapping of limits by name ({', '.join(attrs.fields_dict(BudgetLimits))})"
)


@final
@attrs.define(kw_only=True)
class ModuleSpec:
    """One module of a plan.

    Attributes:
        source: Source for the source resolver. The kernel passes it on.
        config: The dict object of the plan, not a copy, or an empty one.
        instance_id: Name under which a provider is mounted if a plan has its module several times.
        on_failure: Failure policy for the handlers of a hook module.
        path: Path of the module in the plan, such as ``$.tools[0]``.
        thing: The function, instance or mount function that the plan has in place of an id, or
            None.
    """

    module: str = option(module_id, doc="The module's id.")
    source: Any = option(
        source,
        None,
        'The origin of the module. If several have the id, `"builtin"` pins the one of this '
        'package, and `{"distribution": NAME}` the one of an installed distribution. The source '
        "resolver reads anything else. Without a resolver, it is a path.",
    )
    config: dict[str, Any] = _setting(
        mapping,
        attrs.Factory(dict),
        "Passed to the module's mount(). The module defines its keys.",
    )
    instance_id: str | None = option(
        attrs.evolve(optional(_name), expected="a name"),
        None,
        "The name to mount it under. Needed if one module is mounted several times.",
    )
    on_failure: Literal["continue", "deny"] = _setting(
        attrs.evolve(choice("continue", "deny"), expected="'continue' or 'deny'"),
        "continue",
        "Whether a handler that fails or times out is skipped, or denies (a gate). "
        "A gate that returns None denies, too.",
    )
    path: str = "$"
    thing: Any = None


_places = attrs.evolve(
    texts(), schema={"type": "array", "items": {"type": "string", "minLength": 1}}
)


@final
@attrs.frozen(kw_only=True)
class ProtectedPlaceChanges:
    """Changes to the places that an agent may change only with a person's approval."""

    add: tuple[str, ...] = option(
        _places,
        (),
        "Further places: names at any depth, such as `deploy.key` or `ci/secrets`, "
        "or absolute paths.",
    )
    allow: tuple[str, ...] = option(
        _places,
        (),
        "Places that need no approval, in the same form. The agent's own code stays protected.",
    )


@attrs.define(kw_only=True)
class SessionSettings:
    """The settings in the plan's section ``session``, without its two modules."""

    strict: bool = _setting(
        flag,
        False,
        "Whether any module that cannot be used is fatal, not only loop, context and gates.",
    )
    deadlines: Deadlines = _setting(
        record(Deadlines, f"a mapping of seconds by name ({', '.join(DEADLINE_NAMES)})"),
        attrs.Factory(Deadlines),
        "Seconds that the kernel waits for code it did not write. null: no limit.",
    )
    injection_budget_per_turn: int | None = option(
        _limit, None, "Tokens that hooks may inject in one turn before a warning. null: no limit."
    )
    injection_size_limit: int | None = option(
        _limit, None, "Characters of one injection before it is refused. null: no limit."
    )
    budget: BudgetLimits | None = _setting(
        BUDGET, None, "Limits for the session and all its children together. null: no limit."
    )
    protected_places: ProtectedPlaceChanges | None = _setting(
        record(ProtectedPlaceChanges, "a mapping with add and allow"),
        None,
        "Changes to the places that tools may change only with a person's approval. "
        "The modules read it.",
    )
    metadata: Any = option(
        anything, None, "The application's own data, which session events carry."
    )
    raw: bool = _setting(flag, False, "Whether session events carry the plan, without secrets.")


@final
@attrs.define(kw_only=True)
class MountPlan(SessionSettings):
    """A plan that was read without problems, with its modules in mounting order.

    Attributes:
        agents: The application's own data. The kernel does not read it.
        warnings: Warnings about the plan. Every one begins with a path.
    """

    orchestrator: ModuleSpec
    context: ModuleSpec
    providers: list[ModuleSpec]
    tools: list[ModuleSpec]
    hooks: list[ModuleSpec]
    agents: Any = None
    warnings: list[str] = attrs.Factory(list)
