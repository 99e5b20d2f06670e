"""Meters: wrappers around providers and tools that count their calls and enforce the budget."""

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

# Services refuse smaller limits of output tokens.
_MIN_OUTPUT = 16
# Keywords by which callers limit the output. The first one takes precedence.
_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens")
_OWN_MEMBERS = frozenset(
    {"__wrapped__", "meter_of_session", "_density", "execute", "complete", "stream"}
)


@final
class SessionMeter:
    """Counts the calls of one session and refuses calls that do not fit.

    Attributes:
        budget: Budget of the session.
        refusal: The error that ends the running turn, or None.
        until: Time at which the running turn expires, by the event loop's clock.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.refusal: BudgetError | None = None
        self.until: float = math.inf
        self._stop: Callable[[], None] | None = None
        self._has_called = False
        self._unguarded: list[Reservation] = []

    # ── mounted modules ──

    def meter(self, point: str, module: Any) -> Any:
        """Return a provider or a tool wrapped in a meter, and any other module unchanged."""
        kind: Any = {"providers": MeteredProvider, "tools": MeteredTool}.get(point)
        if kind is None:
            return module
        # The module may already have a meter of another session, or of this one under another name.
        if type(module) is kind:
            module = module.__wrapped__
        return kind(module, self)

    def meter_all(self, points: Mapping[str, object]) -> None:
        """Wrap modules that were put at mount points without `mount`."""
        for point in ("providers", "tools"):
            modules = points.get(point)
            if not isinstance(modules, dict):
                continue
            for name, module in list(modules.items()):
                if getattr(module, "meter_of_session", None) is not self:
                    modules[name] = self.meter(point, module)

    def watch(self, coordinator: Coordinator) -> None:
        """Detect model calls that bypass the meters.

        A provider emits ``llm:response``, and a loop ``provider:response``. In a turn without a
        metered call, either event reports such a call, unless a step wrapper replayed the answer.
        """

        async def note_step(step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
            self._has_called = self._has_called or step.kind == "model"
            return await run()

        def note_response(event: str, data: object) -> None:
            if self._stop is not None and not self._has_called and self.refusal is None:
                name = type(coordinator.get("orchestrator")).__name__
                self.refusal = BudgetError(
                    f"the budget of session {coordinator.session_id!r} cannot be enforced: "
                    f"orchestrator {name} reports a model call ({event}) that was not made through "
                    "a provider mounted in the session; use a loop that calls the mounted "
                    "providers, or remove session.budget from the plan"
                )
                self._stop()

        coordinator.register_step_wrapper(note_step)
        for event in (LLM_RESPONSE, PROVIDER_RESPONSE):
            coordinator.hooks.register(event, note_response, name="budget", fields=())

    # ── turns ──

    async def begin_turn(self) -> float:
        """Start a turn, and return the time at which it expires.

        Raises:
            BudgetExceeded: No time is left.
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
        """Use ``stop`` to cancel the running turn after a refusal."""
        self._stop = stop

    def end_turn(self) -> None:
        """End a turn that has unwound."""
        self._stop = None
        self.until = math.inf
        self.budget.stop_clock()
        unguarded, self._unguarded = self._unguarded, []
        for reservation in unguarded:
            reservation.close()

    def close_with_turn(self, reservation: Reservation) -> None:
        """Close a reservation at the end of the turn at the latest.

        Nothing else closes it if the caller abandons the iterator.
        """
        if self._stop is not None:
            self._unguarded.append(reservation)

    async def out_of_time(self) -> BudgetExceeded:
        """Emit ``budget:exceeded`` for a turn that has run out of time, and return the error."""
        error = self.budget.out_of_time()
        await self.budget.emit_exceeded(error)
        return error

    # ── calls ──

    async def open_tool_call(self) -> None:
        """Count a tool call.

        Raises:
            BudgetError: The call does not fit, or an earlier call of this turn was refused.
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
        """Reserve the amounts that a model call may need.

        If running calls may need less than is held for them, wait for them to end.

        Raises:
            BudgetError: The call does not fit, its price is unknown, or an earlier call of this
                turn was refused.
        """
        Reservation.hand_over()
        while True:
            self._raise_refusal()
            try:
                self._check_minimum(call)
                fits, output = self._output_limit(call)
            except BudgetError as error:
                await self._refuse(error)
            if fits:
                self._has_called = True
                return Reservation.open(self.budget, call, output)
            await self.budget.wait_for_change()

    @property
    def limits_size(self) -> bool:
        """Whether a budget of the chain limits the size of model calls."""
        return any(budget.limits_size for budget in self.budget.chain())

    def _check_minimum(self, call: ModelCall) -> None:
        """Refuse a call that does not fit with the smallest output, even if no other call runs."""
        output = _min_output(call)
        for budget in self.budget.chain():
            error = (
                budget.shortage("model_calls", 1)
                or budget.shortage("tokens", call.input_tokens + output)
                or budget.shortage("cost", call.max_cost(budget.limits, output))
            )
            if error is not None:
                raise error

    def _output_limit(self, call: ModelCall) -> tuple[bool, int | None]:
        """Return whether the call can be made now, and its limit of output tokens.

        Only actual use shortens the output of a call, never the amounts held for other calls. So a
        call that does not fit in full waits while others are running.
        """
        if not self.limits_size:
            return True, None
        wanted = UNLIMITED if call.output_tokens is None else call.output_tokens
        if self._fits(call, wanted):
            return True, wanted
        if any(budget.is_holding for budget in self.budget.chain()):
            return False, None
        fitting, too_much = _min_output(call), wanted
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
            and budget.free("cost") >= call.max_cost(budget.limits, output)
            for budget in self.budget.chain()
        )

    def _raise_refusal(self) -> None:
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    async def _refuse(self, error: BudgetError) -> NoReturn:
        """Raise the error, and end the turn with it even if the loop handles it."""
        if self._stop is not None:
            self.refusal = copy.copy(error)
        if isinstance(error, BudgetExceeded):
            await self.budget.emit_exceeded(error)
        raise error


def _min_output(call: ModelCall) -> int:
    return _MIN_OUTPUT if call.output_tokens is None else min(_MIN_OUTPUT, call.output_tokens)


# ── around providers and tools ───────────────────────────────────────────────────────────────────

# ``isinstance`` with a protocol does not see members that only `__getattr__` provides. So the
# members of the protocols are descriptors.


class _Inner:
    """A member of a protocol that comes from the wrapped module."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance.__wrapped__, self._name)


class _Metered:
    """Base of the wrappers of providers and tools."""

    def __init__(self, inner: Any, meter: SessionMeter) -> None:
        self.__wrapped__ = inner
        self.meter_of_session = meter

    def __repr__(self) -> str:
        return f"<metered {self.__wrapped__!r}>"

    def __getattr__(self, name: str) -> Any:
        # The attribute is not set yet while the object is being copied.
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: object) -> None:
        # Replacing a metered method replaces the wrapper's own method, which callers use.
        if name in _OWN_MEMBERS:
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
            BudgetError: The call does not fit into the budget.
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

    # Not every provider has ``stream``, so the wrapper must not define it.
    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if name == "stream" and callable(member):
            return lambda request, **kwargs: _MeteredStream(self, member, request, kwargs)
        return member

    async def _reserve(self, request: object, kwargs: dict[str, Any]) -> Reservation:
        meter = self.meter_of_session
        inner = self.__wrapped__
        defaults = getattr(_call_member(inner, "get_info"), "defaults", None)
        defaults = defaults if isinstance(defaults, dict) else {}
        model = kwargs.get("model") or getattr(request, "model", None) or defaults.get("model")
        limits = [kwargs.get(name) for name in _OUTPUT_LIMITS]
        limits.append(getattr(request, "max_output_tokens", None))
        limits.append(_call_member(inner, "output_limit", request, **kwargs))
        if model == defaults.get("model"):
            limits.append(defaults.get("max_output_tokens"))
        output = next((limit for limit in limits if type(limit) is int and limit > 0), None)
        size = self._density.apply(request_tokens(request)) if meter.limits_size else 0

        def estimate_cost(input_tokens: int, output_tokens: int) -> Decimal | None:
            counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
            cost = _call_member(inner, "estimate_cost", request, **{**kwargs, **counts})
            return cost if isinstance(cost, Decimal) and cost >= 0 else None

        return await meter.open_model_call(
            ModelCall(
                provider=str(self.name),
                model=str(model or ""),
                input_tokens=size,
                output_tokens=output,
                estimate_cost=estimate_cost,
                density=self._density,
            )
        )


@final
class _MeteredStream:
    """The streamed answer of a metered call.

    Like the provider's stream, it can be entered or iterated over.
    """

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
        """Close a stream that was not entered."""
        close = getattr(self._inner, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            if self._reservation is not None:
                self._reservation.close()

    def __del__(self) -> None:
        # The caller abandoned the stream. The garbage collector may run in any thread, but only the
        # event loop's thread may wake waiting calls.
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
    """Return copies of a request and its keywords with a limit of output tokens."""
    if output_tokens is None:
        return request, kwargs
    kwargs = kwargs | {name: output_tokens for name in _OUTPUT_LIMITS if name in kwargs}
    if not hasattr(request, "max_output_tokens"):
        return request, {**kwargs, "max_tokens": output_tokens}
    request = copy.copy(request)
    request.max_output_tokens = output_tokens
    return request, kwargs


def _call_member(provider: object, name: str, *args: object, **kwargs: object) -> Any:
    """Call a method of a provider. Return None if it fails or does not exist."""
    member = getattr(provider, name, None)
    try:
        return None if member is None else member(*args, **kwargs)
    except Exception:  # noqa: BLE001 — third-party code
        return None
