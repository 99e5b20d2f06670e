"""Meters: one for each session, and around each provider and tool of it, so that every call is counted, whoever makes it.

`SessionMeter` decides about every call, and what becomes of a turn when one was refused.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any, NoReturn, Self, final

import anyio

from amplifier.contracts import Coordinator, Step
from amplifier.errors import BudgetError, BudgetExceeded
from amplifier.events import LLM_RESPONSE, PROVIDER_RESPONSE

from ._reservation import UNLIMITED, Density, ModelCall, Reservation, request_tokens
from .budget import Budget

_LEAST_OUTPUT = 16
"""The fewest output tokens a model is asked for; services refuse smaller limits."""
_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens")
"""Keywords by which callers limit the output, the first one taking precedence."""
_OWN = frozenset({"__wrapped__", "meter_of_session", "_density", "execute", "complete", "stream"})


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
            coordinator.hooks.register(event, note_response, name="budget", fields=())

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
            error = budget.shortage("model_calls", 1) or budget.shortage(
                "tokens", call.input_tokens + least
            )
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


# ── around providers and tools ───────────────────────────────────────────────────────────────────


class _Inner:
    """A member of the module inside that a protocol names: one that only `__getattr__` finds is none to ``isinstance``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance.__wrapped__, self._name)


class _Metered:
    """What both have in common."""

    def __init__(self, inner: Any, meter: SessionMeter) -> None:
        self.__wrapped__ = inner
        self.meter_of_session = meter

    def __repr__(self) -> str:
        return f"<metered {self.__wrapped__!r}>"

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Who replaces a method that is metered means the one that callers see.
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.__wrapped__, name, value)

    name = _Inner()


@final
class MeteredTool(_Metered):
    """A tool whose calls are counted."""

    description = _Inner()

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Count the call and make it.

        Raises:
            BudgetError: It does not fit into the budget.
        """
        await self.meter_of_session.open_tool_call()
        return await self.__wrapped__.execute(*args, **kwargs)


@final
class MeteredProvider(_Metered):
    """A provider whose calls have to fit into the budget."""

    def __init__(self, inner: Any, meter: SessionMeter) -> None:
        super().__init__(inner, meter)
        self._density = Density()

    get_info, list_models, parse_tool_calls = _Inner(), _Inner(), _Inner()

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        """Make the call inside the budget.

        Raises:
            BudgetError: It does not fit.
        """
        reservation = await self._reserve(request, kwargs)
        request, kwargs = _limited(request, kwargs, reservation.output_tokens)
        try:
            with reservation.under_way():
                response = await self.__wrapped__.complete(request, **kwargs)
            reservation.settle(response)
        finally:
            reservation.close()
        await self.meter_of_session.budget.emit_warnings()
        return response

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name == "stream" and callable(found):  # a member that not every provider has
            return lambda request, **kwargs: _MeteredStream(self, found, request, kwargs)
        return found

    async def _reserve(self, request: Any, kwargs: dict[str, Any]) -> Reservation:
        meter = self.meter_of_session
        inner = self.__wrapped__
        defaults = getattr(_ask(inner, "get_info"), "defaults", None)
        defaults = defaults if isinstance(defaults, dict) else {}
        model = kwargs.get("model") or getattr(request, "model", None) or defaults.get("model")
        limits = (
            *(kwargs.get(name) for name in _OUTPUT_LIMITS),
            getattr(request, "max_output_tokens", None),
        )
        known = _ask(inner, "output_limit", request, **kwargs)
        usual = defaults.get("max_output_tokens") if model == defaults.get("model") else None
        output = next(
            (each for each in (*limits, known, usual) if type(each) is int and each > 0), None
        )

        def estimate_cost(input_tokens: int, output_tokens: int) -> Decimal | None:
            counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
            cost = _ask(inner, "estimate_cost", request, **{**kwargs, **counts})
            return cost if isinstance(cost, Decimal) and cost >= 0 else None

        return await meter.open_model_call(
            ModelCall(
                provider=str(self.name),
                model=str(model or ""),
                input_tokens=self._density.applied(request_tokens(request))
                if meter.limits_size
                else 0,
                output_tokens=output,
                estimate_cost=estimate_cost,
                density=self._density,
            )
        )


@final
class _MeteredStream:
    """The answer of one metered call in pieces; can be entered or iterated over, as the provider's own."""

    def __init__(
        self, provider: MeteredProvider, stream: Any, request: Any, kwargs: dict[str, Any]
    ) -> None:
        self._provider = provider
        self._stream = stream
        self._request = request
        self._kwargs = kwargs
        self._inner: Any = None
        self._chunks: Any = None
        self._reservation: Reservation | None = None
        self._is_entered = False
        self._thread = 0

    async def __aenter__(self) -> AsyncIterator[Any]:
        reservation = await self._open()
        self._is_entered = True
        enter = getattr(type(self._inner), "__aenter__", None)
        try:
            with reservation.under_way():
                self._chunks = aiter(self._inner if enter is None else await enter(self._inner))
        except BaseException:
            reservation.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        assert self._reservation is not None
        leave = getattr(type(self._inner), "__aexit__", None)
        try:
            with self._reservation.under_way():
                answer = None if leave is None else await leave(self._inner, kind, exc, traceback)
        finally:
            self._reservation.close()
        if exc is None:
            await self._provider.meter_of_session.budget.emit_warnings()
        return answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._chunks is None:
            await self._open()
            self._chunks = aiter(self._inner)
            assert self._reservation is not None
            self._provider.meter_of_session.close_with_turn(self._reservation)
            self._thread = threading.get_ident()
        reservation = self._reservation
        assert reservation is not None
        try:
            with reservation.under_way():
                chunk = await anext(self._chunks)
        except BaseException:
            if not self._is_entered:
                reservation.close()
            raise
        reservation.note_chunk(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close a stream that is read without a block around it."""
        close = getattr(self._inner, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            if self._reservation is not None:
                self._reservation.close()

    def __del__(self) -> None:
        # Left half-way. The garbage collector may run in any thread; only that of the event loop may wake those who wait.
        if self._reservation is not None and self._thread == threading.get_ident():
            self._reservation.close()

    async def _open(self) -> Reservation:
        self._reservation = await self._provider._reserve(self._request, self._kwargs)
        request, kwargs = _limited(self._request, self._kwargs, self._reservation.output_tokens)
        try:
            self._inner = self._stream(request, **kwargs)
        except BaseException:
            self._reservation.close()
            raise
        return self._reservation


def _limited(
    request: Any, kwargs: dict[str, Any], output_tokens: int | None
) -> tuple[Any, dict[str, Any]]:
    """The same request with a limit of output tokens; what the caller gave is not changed."""
    if output_tokens is None:
        return request, kwargs
    kwargs = {
        name: output_tokens if name in _OUTPUT_LIMITS else value for name, value in kwargs.items()
    }
    if not hasattr(request, "max_output_tokens"):
        return request, {**kwargs, "max_tokens": output_tokens}
    request = copy.copy(request)
    request.max_output_tokens = output_tokens
    return request, kwargs


def _ask(provider: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """What a member of a provider answers; None if it has none, or if that fails."""
    member = getattr(provider, name, None)
    try:
        return None if member is None else member(*args, **kwargs)
    except Exception:  # noqa: BLE001 — a provider is foreign code; what it does not say is not known
        return None
