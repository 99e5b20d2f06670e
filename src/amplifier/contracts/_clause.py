"""A clause: one promise of a contract, with a number that tests, reports and documentation refer to."""

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
        level: A module that breaks a required clause is not conformant; breaking a recommended one is only reported.
        law: The law of the kernel that rests on this promise, such as ``L2``, if one does.
        source: What demands or recommends it: a checklist of a published contract (``tool contract, Required``), a law
            (``L5``), or a clarification by this project (``contract clarifications: contexts``).
        hint: How to fix a module that breaks it.
        look_at: Functions of a module's source that keep the promise, the likeliest first; ``mount`` is its entry
            point, whatever that is called. Empty when any function of the module may break it.
        id: A letter for the contract and a number: ``T4``. Never given to another promise once published.
    """

    text: str
    level: Level = field(kw_only=True)
    law: str | None = field(default=None, kw_only=True)
    source: str = field(kw_only=True)
    hint: str = field(kw_only=True)
    look_at: tuple[str, ...] = field(default=(), kw_only=True)
    id: str = field(default="", kw_only=True)


def constructors(contract: str, modules: str) -> tuple[partial[Clause], ...]:
    """What defines the clauses of one contract: ``required``, ``clarified``, ``recommended`` and ``advised``.

    Every conformant module keeps a promise that the checklist of the published contract requires, or that this project clarified; good
    modules keep one that the checklist or this project recommends. A clause with another ``source`` names it.

    Args:
        contract: The published contract, such as ``tool contract``.
        modules: Its modules, in the plural.
    """
    return (
        partial(Clause, level="required", source=f"{contract}, Required"),
        partial(Clause, level="required", source=f"contract clarifications: {modules}"),
        partial(Clause, level="recommended", source=f"{contract}, Recommended"),
        partial(Clause, level="recommended", source="recommendation of this project"),
    )


def numbered(**clauses: Clause) -> tuple[Clause, ...]:
    """The clauses of a contract, each with its id."""
    return tuple(evolve(clause, id=number) for number, clause in clauses.items())
