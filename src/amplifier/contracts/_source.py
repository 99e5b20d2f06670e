"""The module source contract: from a module id to a place it can be imported from.

The application decides where modules come from: the loader asks the resolver at the mount point
``module-source-resolver``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ._clause import constructors, numbered


@runtime_checkable
class ModuleSource(Protocol):
    """A place one module can be had from."""

    def resolve(self) -> Path:
        """Return the directory that holds the importable package.

        Raises:
            ModuleNotFoundError: The source cannot be reached or holds no such module.
            OSError: The filesystem refused.
        """


@runtime_checkable
class ModuleSourceResolver(Protocol):
    """Decides where a module comes from.

    `isinstance` looks at member names only, so a `ModuleSource` passes for a resolver. The hint is the plan's
    ``source``; a resolver may call its parameter ``profile_hint`` or ``source_hint``.
    """

    def resolve(self, module_id: str, profile_hint: Any = None, /) -> ModuleSource:
        """Choose a source.

        Args:
            module_id: What was asked for, such as ``tool-bash``.
            profile_hint: The source in the plan, in a form that the application defines.

        Raises:
            ModuleNotFoundError: This resolver knows no source for the id.
        """


@runtime_checkable
class AsyncModuleSourceResolver(Protocol):
    """A resolver that waits for something, such as a download; asked instead of `ModuleSourceResolver.resolve`."""

    async def async_resolve(self, module_id: str, profile_hint: Any = None, /) -> ModuleSource:
        """Choose a source; see `ModuleSourceResolver.resolve`."""


required, _, recommended, advised = constructors("module source contract", "resolvers")

CLAUSES = numbered(
    R1=required(
        "The resolver has resolve(module_id, hint) or an async async_resolve(module_id, hint).",
        source="module source contract, Protocol",
        hint="Give the resolver a plain resolve(module_id, hint=None), or an async async_resolve(module_id, hint=None).",
    ),
    R2=required(
        "It can be asked without a hint.",
        source="module source contract, Protocol",
        hint="Give the hint a default of None.",
    ),
    R3=required(
        "It returns a ModuleSource, whose resolve() returns the Path of a directory with an importable package.",
        source="module source contract, Invariants",
        hint="Return an object whose resolve() gives the Path of a directory that contains the package.",
    ),
    R4=required(
        "A module that cannot be found raises ModuleNotFoundError, from the resolver or from its source.",
        law="L9",
        source="module source contract, Invariants",
        hint="Raise amplifier.errors.ModuleNotFoundError with the id.",
    ),
    R5=required(
        "Trouble with the filesystem leaves as OSError.",
        law="L9",
        source="L9",
        hint="Let OSError pass; a directory that cannot be read is not a module that cannot be found.",
    ),
    R6=required(
        "The same question gets the same answer.",
        source="module source contract, Invariants",
        hint="Keep no state between questions that changes the answer.",
    ),
    R7=required(
        "Resolving imports nothing, and leaves sys.path and the coordinator as they were.",
        law="L8",
        source="module source contract, Invariants",
        hint="Look at files only; leave importing to the loader.",
    ),
    R8=recommended(
        "The error names the module asked for, where it was looked for, and what to do.",
        source="module source contract, Errors",
        hint="Name the module, the places and the remedy in the message.",
    ),
    R9=advised(
        "A resolver that may wait for a network or a disk offers async_resolve.",
        law="L3",
        hint="Add async def async_resolve and do slow work in a worker thread.",
    ),
)
