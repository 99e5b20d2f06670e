"""The mount plan as TypedDicts, for plans that are written in Python and type-checked.

They have only the keys of the JSON Schema, and accept module objects in place of ids. A plan with
additional data of the application is a ``dict[str, Any]``.
"""

# Annotations are evaluated here, because `__required_keys__` is wrong where they are strings.
from collections.abc import Callable
from typing import Any, Literal, Protocol, Required, TypeAlias, TypedDict

from ..contracts import ContextManager, Orchestrator, Provider, Tool


class Mountable(Protocol):
    """Something with a mount function, such as a Python module."""

    def mount(self, coordinator: Any, config: Any, /) -> Any:
        """See the contract of modules."""


MountFunction: TypeAlias = Callable[[Any, Any], Any] | Mountable
Function: TypeAlias = Callable[..., Any] | Mountable
"""A function that is a tool or a hook, or a mount function."""


class ModuleDict(TypedDict, total=False):
    """A module of a plan that needs more than its id."""

    module: Required[str | Orchestrator | ContextManager | Provider | Tool | Function]
    source: Any
    config: dict[str, Any] | None


class ProviderDict(ModuleDict, total=False):
    """A provider of a plan."""

    instance_id: str | None


class HookDict(ModuleDict, total=False):
    """A hook of a plan."""

    on_failure: Literal["continue", "deny"] | None


class DeadlinesDict(TypedDict, total=False):
    """Seconds that the kernel waits for code it did not write. None means no limit."""

    mount: float | None
    ready: float | None
    hook: float | None
    contribution: float | None
    collection: float | None
    cleanup: float | None
    teardown: float | None
    turn: float | None


class TokenPriceDict(TypedDict):
    """The price of a model, per million tokens."""

    input_per_million: float | str
    output_per_million: float | str


class BudgetDict(TypedDict, total=False):
    """Limits for a session and all its children together. None means no limit."""

    tokens: int | None
    cost: float | str | None
    currency: str | None
    model_calls: int | None
    tool_calls: int | None
    seconds: float | None
    warn_at: float | None
    unknown_price: Literal["refuse", "allow"] | None
    prices: dict[str, TokenPriceDict] | None


class ProtectedPlacesDict(TypedDict, total=False):
    """Changes to the places that an agent may change only with a person's approval."""

    add: list[str]
    allow: list[str]


class SessionDict(TypedDict, total=False):
    """The two modules that every agent has, and the settings of the session."""

    orchestrator: Required[str | ModuleDict | Orchestrator | MountFunction]
    context: Required[str | ModuleDict | ContextManager | MountFunction]
    orchestrator_source: Any
    context_source: Any
    strict: bool | None
    deadlines: DeadlinesDict | None
    injection_budget_per_turn: int | None
    injection_size_limit: int | None
    budget: BudgetDict | None
    protected_places: ProtectedPlacesDict | None
    metadata: Any
    raw: bool | None


class RoleDict(TypedDict, total=False):
    """The config of the orchestrator or the context, if the session names it by id."""

    config: dict[str, Any] | None


# A class statement cannot spell this key.
_SchemaKey = TypedDict("_SchemaKey", {"$schema": Any}, total=False)


class PlanDict(_SchemaKey, total=False):
    """A mount plan: which modules make an agent, and how they are configured."""

    session: Required[SessionDict]
    orchestrator: RoleDict | None
    context: RoleDict | None
    providers: list[str | ProviderDict | Provider | MountFunction] | None
    tools: list[str | ModuleDict | Tool | Function] | None
    hooks: list[str | HookDict | Function] | None
    agents: Any
