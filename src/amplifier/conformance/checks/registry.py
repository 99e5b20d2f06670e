"""The registry of checks, filled by the decorator `check`.

Checks are plain functions that import neither pytest nor Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Literal, TypeVar

from attrs import frozen

from amplifier.contracts import COMMON_CLAUSES, CONTRACTS, Clause

Kind = Literal["static", "structure", "behaviour", "cancellation", "hygiene"]
KINDS: tuple[Kind, ...] = ("static", "structure", "behaviour", "cancellation", "hygiene")
"""Kinds of checks in running order: from those that execute nothing to the most demanding."""

ALL_TYPES = frozenset(CONTRACTS)

CheckFunction = TypeVar("CheckFunction", bound=Callable[..., Any])


@frozen
class Check:
    """One check.

    Attributes:
        name: The package of the check and its function, such as ``tool.answers_everything``.
        clauses: The clauses whose violations it can find.
        kind: The part of the module that it has to run.
        types: The module types to which it applies.
        inputs: The name of the strategy that draws its cases, or None if it draws none.
        without_instance: The clauses that it can decide even if mount declines.
        needs_success: The clauses that it cannot decide if every call of the module fails.
        real_time: True if it measures seconds, so that it cannot run in virtual time.
        ends_run: True if it runs before all others and a violation ends the run, because
            everything else would take too long.
        run: The function.
    """

    name: str
    clauses: tuple[str, ...]
    kind: Kind
    types: frozenset[str]
    inputs: str | None
    without_instance: frozenset[str]
    needs_success: frozenset[str]
    real_time: bool
    ends_run: bool
    run: Callable[..., Any]

    @property
    def how(self) -> str:
        """The check in a sentence."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


CHECKS: dict[str, Check] = {}
"""Every check by name, in order of definition."""


def check(
    *clauses: str,
    kind: Kind,
    types: Iterable[str] = ALL_TYPES,
    inputs: str | None = None,
    without_instance: Iterable[str] = (),
    needs_success: Iterable[str] = (),
    real_time: bool = False,
    ends_run: bool = False,
    on: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function as a check.

    A static check is a function of the target and yields faults. Any other check is an async
    function of a `CheckContext`, which holds the drawn case if the check names ``inputs``. With
    ``on``, it is a function of the object that ``on`` opens for that context, and does not run if
    that is None.
    """

    def register(function: CheckFunction) -> CheckFunction:
        package = function.__module__.partition(".checks.")[2].partition(".")[0]
        name = f"{package}.{function.__name__}"
        declared = frozenset(without_instance), frozenset(needs_success), real_time, ends_run
        run = function if on is None else _run_on(on, function)
        CHECKS[name] = Check(name, clauses, kind, frozenset(types), inputs, *declared, run)
        return function

    return register


def _run_on(
    on: Callable[[Any], AbstractAsyncContextManager[Any]], function: CheckFunction
) -> Callable[..., Any]:
    @wraps(function)
    async def run(ctx: Any) -> None:
        async with on(ctx) as opened:
            if opened is not None:
                await function(opened)

    return run


def all_clauses() -> dict[str, Clause]:
    """Return every clause of every contract, by id."""
    clauses = [
        *COMMON_CLAUSES,
        *(clause for contract in CONTRACTS.values() for clause in contract.clauses),
    ]
    return {clause.id: clause for clause in clauses}


def checks_for(module_type: str, kinds: Iterable[str] = KINDS) -> list[Check]:
    """Return the checks of one type of module, in running order."""
    wanted = [kind for kind in KINDS if kind in set(kinds)]
    return [
        entry
        for kind in wanted
        for entry in CHECKS.values()
        if entry.kind == kind and module_type in entry.types
    ]
