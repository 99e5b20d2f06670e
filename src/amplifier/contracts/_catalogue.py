"""The table of contracts: for each type of module its mount point, Protocol and clauses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from amplifier.models import ModuleType

from ._clause import Clause
from ._context import CLAUSES as CONTEXT_CLAUSES
from ._context import ContextManager
from ._coordinator import MountPoint
from ._hook import CLAUSES as HOOK_CLAUSES
from ._hook import HookHandler
from ._mount import CLAUSES as MOUNT_CLAUSES
from ._orchestrator import CLAUSES as ORCHESTRATOR_CLAUSES
from ._orchestrator import Orchestrator
from ._provider import CLAUSES as PROVIDER_CLAUSES
from ._provider import Provider
from ._source import CLAUSES as SOURCE_CLAUSES
from ._source import ModuleSourceResolver
from ._tool import CLAUSES as TOOL_CLAUSES
from ._tool import Tool


@frozen
class Contract:
    """The contract of one type of module.

    Attributes:
        module_type: Type of the module.
        mount_point: Mount point of such a module.
        protocol: Protocol of the mounted object. For hooks, the Protocol of one handler.
        clauses: Promises of this type, besides `COMMON_CLAUSES`.
    """

    module_type: ModuleType
    mount_point: MountPoint
    protocol: type
    clauses: tuple[Clause, ...]


COMMON_CLAUSES: Final = MOUNT_CLAUSES
"""The promises of every module of any type."""

_ALL: Final = (
    Contract("orchestrator", "orchestrator", Orchestrator, ORCHESTRATOR_CLAUSES),
    Contract("context", "context", ContextManager, CONTEXT_CLAUSES),
    Contract("provider", "providers", Provider, PROVIDER_CLAUSES),
    Contract("tool", "tools", Tool, TOOL_CLAUSES),
    Contract("hook", "hooks", HookHandler, HOOK_CLAUSES),
    Contract("resolver", "module-source-resolver", ModuleSourceResolver, SOURCE_CLAUSES),
)

CONTRACTS: Final[Mapping[ModuleType, Contract]] = MappingProxyType(
    {contract.module_type: contract for contract in _ALL}
)
"""The contracts by module type."""


def clauses_for(module_type: ModuleType) -> tuple[Clause, ...]:
    """Return the promises of a type of module: the common clauses, then its own."""
    return COMMON_CLAUSES + CONTRACTS[module_type].clauses
