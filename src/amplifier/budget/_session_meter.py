"""The kernel's side of budgets: meters around what is mounted, and what a turn does when a call was refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, final

import anyio

from amplifier.contracts import Coordinator, Step
from amplifier.errors import BudgetError, BudgetExceeded
from amplifier.events import LLM_RESPONSE, PROVIDER_RESPONSE

from ._budget import Budget
from ._metered import MeteredProvider, MeteredTool
from ._reservation import UNLIMITED, ModelCall, Reservation

_LEAST_OUTPUT = 16
"""The fewest output tokens a model is asked for; services refuse smaller limits."""


@final
class SessionMeter:
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

    # ── what is mounted ──

    def meter(self, point: str, module: Any) -> Any:
        """A provider or a tool inside its meter; anything else as it is."""
        kind: Any = {"providers": MeteredProvider, "tools": MeteredTool}.get(point)
        if kind is None:
            return module
        if type(module) is kind:  # of another session, or of this one under another name
            module = module.__wrapped__
        return kind(module, self)

    def meter_all(self, points: Mapping[str, Any]) -> None:
        """Put meters around what was put at the mount points past `mount`."""
        for point in ("providers", "tools"):
            modules: Any = points.get(point)
            for name, module in list(modules.items()) if isinstance(modules, dict) else ():
                if getattr(module, "meter_of_session", None) is not self:
                    modules[name] = self.meter(point, module)

    def watch(self, coordinator: Coordinator) -> None:
        """Listen for model calls that do not go through a meter.

        A provider emits ``llm:response``, a loop ``provider:response``. Either of them in a turn without a metered call is the
        report of a call past the budget, unless a step wrapper answered it from what it kept.
        """

        async def note_step(step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
            self._has_called = self._has_called or step.kind == "model"
            return await run()

        def note_response(event: str, data: Any) -> None:
            if self._stop is not None and not self._has_called and self.refusal is None:
                name = type(coordinator.get("orchestrator")).__name__
                self.refusal = BudgetError(
                    f"the budget of session {coordinator.session_id!r} cannot be enforced by orchestrator {name}: it reports a model "
                    f"call ({event}) that was not made through a provider mounted in the session; use a loop that calls the "
                    "providers it is given, or remove session.budget from the plan"
                )
                self._stop()

        coordinator.register_step_wrapper(note_step)
        for event in (LLM_RESPONSE, PROVIDER_RESPONSE):
            coordinator.hooks.register(event, note_response, name="budget")

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
