"""The mount plan: schema, reading, validation, overlays.

A plan is a dict. Nothing here reads files or environment variables. `parse_plan` turns it into a
`MountPlan`, and reports all problems at once, each with its ``$.path``. A misspelt key is a
problem, because its value would be lost. A key that resembles no known one is only a warning,
because applications keep their own data in plans.
"""

from ._model_names import (
    LOCAL_MODEL_ADVICE,
    MODEL_EXAMPLES,
    ModelName,
    family_provider,
    is_local_model,
    names_provider,
    read_model_name,
)
from ._reading import check_plan, parse_plan, plan_schema
from ._types import (
    BudgetDict,
    DeadlinesDict,
    HookDict,
    ModuleDict,
    PlanDict,
    ProtectedPlacesDict,
    ProviderDict,
    RoleDict,
    SessionDict,
    TokenPriceDict,
)
from .dicts import expand_variables, merge_plans, plan_json
from .spec import (
    BudgetLimits,
    Deadlines,
    ModuleSpec,
    MountPlan,
    TokenPrice,
    is_module_id,
    new_session_id,
    type_from_id,
    validate_session_id,
)

__all__ = [
    "LOCAL_MODEL_ADVICE",
    "MODEL_EXAMPLES",
    "BudgetDict",
    "BudgetLimits",
    "Deadlines",
    "DeadlinesDict",
    "HookDict",
    "ModelName",
    "ModuleDict",
    "ModuleSpec",
    "MountPlan",
    "PlanDict",
    "ProtectedPlacesDict",
    "ProviderDict",
    "RoleDict",
    "SessionDict",
    "TokenPrice",
    "TokenPriceDict",
    "check_plan",
    "expand_variables",
    "family_provider",
    "is_local_model",
    "is_module_id",
    "merge_plans",
    "names_provider",
    "new_session_id",
    "parse_plan",
    "plan_json",
    "plan_schema",
    "read_model_name",
    "type_from_id",
    "validate_session_id",
]
