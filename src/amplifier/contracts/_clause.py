"""A clause: one promise of a contract, with a number that tests, reports and documentation refer to.

Above stand the contracts, which are made of clauses; below stands nothing of ours.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Level = Literal["required", "recommended"]


@frozen
class Clause:
    """One promise.

    Attributes:
        id: A letter for the contract and a number: ``T4``. Never given to another promise once published.
        text: The promise in one sentence that a test can decide.
        level: A module that breaks a required clause is not conformant; breaking a recommended one is only reported.
        law: The law of the kernel that rests on this promise, such as ``L2``, if one does.
    """

    id: str
    text: str
    level: Level
    law: str | None = None


def required(clause_id: str, text: str, *, law: str | None = None) -> Clause:
    """Write down a promise that every conformant module keeps."""
    return Clause(clause_id, text, "required", law)


def recommended(clause_id: str, text: str, *, law: str | None = None) -> Clause:
    """Write down a promise that good modules keep."""
    return Clause(clause_id, text, "recommended", law)
