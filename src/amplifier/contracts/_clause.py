"""Clauses: the promises of a contract, with ids for tests, reports and documentation."""

from __future__ import annotations

from functools import partial
from typing import Literal

from attrs import evolve, field, frozen

Level = Literal["required", "recommended"]


@frozen
class Clause:
    """One promise.

    Attributes:
        text: The promise in one sentence that a test can decide.
        level: A module that breaks a required clause is not conformant. Breaking a recommended one
            is only reported.
        law: Law of the kernel that rests on this promise, such as ``L2``, or None.
        source: Origin of the promise: a checklist of a published contract (``tool contract,
            Required``), a law (``L5``), or a clarification by this project (``contract
            clarifications: contexts``).
        hint: Advice for fixing a module that breaks the promise.
        look_at: Functions of the module that keep the promise, the likeliest first. ``mount`` means
            the entry point under any name. Empty means any function.
        id: A letter for the contract and a number, such as ``T4``. A published id is never reused.
    """

    text: str
    level: Level = field(kw_only=True)
    law: str | None = field(default=None, kw_only=True)
    source: str = field(kw_only=True)
    hint: str = field(kw_only=True)
    look_at: tuple[str, ...] = field(default=(), kw_only=True)
    id: str = field(default="", kw_only=True)


def constructors(contract: str, modules: str) -> tuple[partial[Clause], ...]:
    """Return constructors for clauses: ``required``, ``clarified``, ``recommended``, ``advised``.

    The published contract requires or recommends a promise, or this project clarified or advises
    it. A conformant module keeps required and clarified promises, and a good one keeps the others
    too. A clause from another ``source`` names that source.

    Args:
        contract: Name of the published contract, such as ``tool contract``.
        modules: Name of its modules in the plural.
    """
    return (
        partial(Clause, level="required", source=f"{contract}, Required"),
        partial(Clause, level="required", source=f"contract clarifications: {modules}"),
        partial(Clause, level="recommended", source=f"{contract}, Recommended"),
        partial(Clause, level="recommended", source="recommendation of this project"),
    )


def numbered(**clauses: Clause) -> tuple[Clause, ...]:
    """Return the clauses of a contract with their ids."""
    return tuple(evolve(clause, id=number) for number, clause in clauses.items())
