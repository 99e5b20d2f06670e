"""A clause: one promise of a contract, with a number that tests, reports and documentation refer to."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Level = Literal["required", "recommended"]


@frozen
class Clause:
    """One promise.

    Attributes:
        id: A letter for the contract and a number: ``T4``. Never given to another promise once published.
        text: The promise in one sentence that a test can decide.
        level: A module that breaks a required clause is not conformant; breaking a recommended one is only reported.
        law: The law of the kernel that rests on this promise, such as ``L2``, if one does.
        source: What demands or recommends it: a checklist of a published contract (``tool contract, Required``), a law
            (``L5``), or a clarification by this project (``contract clarifications: contexts``).
        hint: How to fix a module that breaks it.
        look_at: Functions of a module's source that keep the promise, the likeliest first; ``mount`` is its entry
            point, whatever that is called. Empty when any function of the module may break it.
    """

    id: str
    text: str
    level: Level
    law: str | None = None
    source: str = field(default="", kw_only=True)
    hint: str = field(default="", kw_only=True)
    look_at: tuple[str, ...] = field(default=(), kw_only=True)


def required(
    clause_id: str, text: str, *, law: str | None = None, source: str, hint: str, look_at: tuple[str, ...] = ()
) -> Clause:
    """Define a promise that every conformant module keeps; ``source`` demands it."""
    return Clause(clause_id, text, "required", law, source=source, hint=hint, look_at=look_at)


def recommended(
    clause_id: str, text: str, *, law: str | None = None, source: str, hint: str, look_at: tuple[str, ...] = ()
) -> Clause:
    """Define a promise that good modules keep."""
    return Clause(clause_id, text, "recommended", law, source=source, hint=hint, look_at=look_at)
