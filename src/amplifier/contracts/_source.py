"""The module source contract: from a module id to a directory to import from.

The application chooses the sources, and the loader calls its ``module-source-resolver``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ._clause import constructors, numbered


@runtime_checkable
class ModuleSource(Protocol):
    """The source of one module."""

    def resolve(self) -> Path:
        """Return the directory that holds the importable package.

        Raises:
            ModuleNotFoundError: The source is unreachable or does not hold the module.
            OSError: The filesystem refused access.
        """


@runtime_checkable
class ModuleSourceResolver(Protocol):
    """Chooses the source of a module.

    `isinstance` checks member names only, so a `ModuleSource` passes for a resolver. The hint is
    the ``source`` in the plan. A resolver may call the parameter ``profile_hint`` or
    ``source_hint``.
    """

    def resolve(self, module_id: str, profile_hint: Any = None, /) -> ModuleSource:
        """Choose a source.

        Args:
            module_id: Id of the module, such as ``tool-bash``.
            profile_hint: The source in the plan, in a form that the application defines.

        Raises:
            ModuleNotFoundError: This resolver has no source for the id.
        """


@runtime_checkable
class AsyncModuleSourceResolver(Protocol):
    """A resolver that may wait, for a download for example.

    It is called instead of `ModuleSourceResolver.resolve`.
    """

    async def async_resolve(self, module_id: str, profile_hint: Any = None, /) -> ModuleSource:
        """Choose a source, as `ModuleSourceResolver.resolve` does."""


required, _, recommended, advised = constructors("module source contract", "resolvers")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    R1=required(
        "The resolver has resolve(module_id, hint) or an async async_resolve(module_id, hint).",
        source="module source contract, Protocol",
        hint="Give the resolver a plain resolve(module_id, hint=None), or an async "
        "async_resolve(module_id, hint=None).",
    ),
    R2=required(
        "The hint is optional.",
        source="module source contract, Protocol",
        hint="Give the hint a default of None.",
    ),
    R3=required(
        "It returns a ModuleSource with a resolve() that returns the Path of a directory with an "
        "importable package.",
        source="module source contract, Invariants",
        hint="Return an object with a resolve() that returns the Path of the directory with the "
        "package in it.",
    ),
    R4=required(
        "A module that cannot be found raises ModuleNotFoundError, from the resolver or from its "
        "source.",
        law="L9",
        source="module source contract, Invariants",
        hint="Raise amplifier.errors.ModuleNotFoundError with the id.",
    ),
    R5=required(
        "Errors of the filesystem are raised as OSError.",
        law="L9",
        source="L9",
        hint="Let OSError propagate: an unreadable directory is not a missing module.",
    ),
    R6=required(
        "Equal calls return the same result.",
        source="module source contract, Invariants",
        hint="Keep no state between calls that changes the result.",
    ),
    R7=required(
        "Resolving imports nothing, and leaves sys.path and the coordinator unchanged.",
        law="L8",
        source="module source contract, Invariants",
        hint="Only look at files, and leave importing to the loader.",
    ),
    R8=recommended(
        "The error names the requested module, the places that were searched, and a remedy.",
        source="module source contract, Errors",
        hint="Name the module, the places and the remedy in the message.",
    ),
    R9=advised(
        "A resolver that may wait for a network or a disk offers async_resolve.",
        law="L3",
        hint="Add async def async_resolve and do slow work in a worker thread.",
    ),
)
# fmt: on
