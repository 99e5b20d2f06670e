"""Decides about every call of a session, and what becomes of a turn when one was refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NoReturn

import anyio

from amplifier.errors import BudgetError, BudgetExceeded

from ._budget import Budget
from ._reservation import UNLIMITED, ModelCall, Reservation

_LEAST_OUTPUT = 16
"""The fewest output tokens a model is asked for; services refuse smaller limits."""


class CallMeter:
    """Counts the calls of one session and refuses those that do not fit.

    Attributes:
        budget: The session's.
        refusal: Why the running turn has to end with an error; None if it has not.
        until: When the running turn runs out of time, by the event loop's clock.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.refusal: BudgetError | None = None
        self.until: float = math.inf
        self._stop: Callable[[], None] | None = None
        self._has_called = False
        self._unguarded: list[Reservation] = []

    # ── turns ──

    async def begin_turn(self) -> float:
        """Begin a turn; returns when it runs out of time.

        Raises:
            BudgetExceeded: There is no time left.
        """
        left = self.budget.seconds_left()
        if left <= 0:
            error = self.budget.out_of_time()
            await self.budget.emit_exceeded(error)
            raise error
        self.refusal = None
        self._has_called = False
        self.budget.start_clock()
        self.until = anyio.current_time() + left
        return self.until

    def run_turn(self, stop: Callable[[], None]) -> None:
        """The turn runs; ``stop`` cancels it."""
        self._stop = stop

    def end_turn(self) -> None:
        """The turn has unwound."""
        self._stop = None
        self.until = math.inf
        self.budget.stop_clock()
        unguarded, self._unguarded = self._unguarded, []
        for reservation in unguarded:
            reservation.close()

    def close_with_turn(self, reservation: Reservation) -> None:
        """Close it at the end of the turn at the latest: no one does so for an iterator that is left half-way."""
        if self._stop is not None:
            self._unguarded.append(reservation)

    async def out_of_time(self) -> BudgetExceeded:
        """The error for the turn that has run out of time; the event is emitted."""
        error = self.budget.out_of_time()
        await self.budget.emit_exceeded(error)
        return error

    # ── calls ──

    async def open_tool_call(self) -> None:
        """Count a tool call.

        Raises:
            BudgetError: It does not fit, or an earlier call of this turn did not.
        """
        self._raise_refusal()
        for budget in self.budget.chain():
            error = budget.shortage("tool_calls", 1)
            if error is not None:
                await self._refuse(error)
        for budget in self.budget.chain():
            budget.charge(tool_calls=1)
        await self.budget.emit_warnings()

    async def open_model_call(self, call: ModelCall) -> Reservation:
        """Hold what a model call may need. Waits for calls under way that may need less than is held for them.

        Raises:
            BudgetError: It does not fit, its price is not known, or an earlier call of this turn was refused.
        """
        Reservation.hand_over()
        while True:
            self._raise_refusal()
            try:
                self._check_least(call)
                fits, output = self._room(call)
            except BudgetError as error:
                await self._refuse(error)
            if fits:
                self._has_called = True
                return Reservation.open(self.budget, call, output)
            await self.budget.wait_for_change()

    @property
    def limits_size(self) -> bool:
        """Whether the size of a model call has to be known before it is made."""
        return any(budget.limits_size for budget in self.budget.chain())

    def _check_least(self, call: ModelCall) -> None:
        """Refuse a call that does not fit even at its smallest, and alone."""
        least = _least_output(call)
        for budget in self.budget.chain():
            error = budget.shortage("model_calls", 1) or budget.shortage("tokens", call.input_tokens + least)
            if error is None:
                error = budget.shortage("cost", call.most_cost(budget.limits, least))
            if error is not None:
                raise error

    def _room(self, call: ModelCall) -> tuple[bool, int | None]:
        """Whether the call can be made now, and its limit of output tokens.

        A call is cut short only by what was really used, never by what others might use: while calls are under way, one that does
        not fit in full waits.
        """
        if not self.limits_size:
            return True, None
        wanted = UNLIMITED if call.output_tokens is None else call.output_tokens
        if self._fits(call, wanted):
            return True, wanted
        if any(budget.is_holding for budget in self.budget.chain()):
            return False, None
        fitting, too_much = _least_output(call), wanted
        while too_much - fitting > 1:
            middle = (fitting + too_much) // 2
            if self._fits(call, middle):
                fitting = middle
            else:
                too_much = middle
        return True, fitting

    def _fits(self, call: ModelCall, output: int) -> bool:
        return all(
            budget.free("tokens") >= call.input_tokens + output
            and budget.free("cost") >= call.most_cost(budget.limits, output)
            for budget in self.budget.chain()
        )

    def _raise_refusal(self) -> None:
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    async def _refuse(self, error: BudgetError) -> NoReturn:
        """Raise the error, and have the turn end with it whatever its loop makes of it."""
        if self._stop is not None:
            self.refusal = copy.copy(error)
        if isinstance(error, BudgetExceeded):
            await self.budget.emit_exceeded(error)
        raise error


def _least_output(call: ModelCall) -> int:
    return _LEAST_OUTPUT if call.output_tokens is None else min(_LEAST_OUTPUT, call.output_tokens)
