"""Providers and tools inside meters: every call is counted, whoever makes it. All other members are those of the module inside."""

from __future__ import annotations

import copy
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from types import TracebackType
from typing import Any, Self, final

from ._call_meter import CallMeter
from ._estimate import Density, request_tokens
from ._reservation import ModelCall, Reservation

_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens")
"""Keywords by which callers limit the output, the first one taking precedence."""
_OWN = frozenset({"__wrapped__", "meter_of_session", "_density", "execute", "complete", "stream"})


class _Metered:
    """What both have in common."""

    def __init__(self, inner: Any, meter: CallMeter) -> None:
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

    @property
    def name(self) -> Any:
        """The name of the module inside."""
        return self.__wrapped__.name


@final
class MeteredTool(_Metered):
    """A tool whose calls are counted."""

    @property
    def description(self) -> Any:
        """That of the tool inside."""
        return self.__wrapped__.description

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

    def __init__(self, inner: Any, meter: CallMeter) -> None:
        super().__init__(inner, meter)
        self._density = Density()

    def get_info(self) -> Any:
        """That of the provider inside."""
        return self.__wrapped__.get_info()

    async def list_models(self) -> Any:
        """Those of the provider inside."""
        return await self.__wrapped__.list_models()

    def parse_tool_calls(self, response: Any) -> Any:
        """As the provider inside parses them."""
        return self.__wrapped__.parse_tool_calls(response)

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
        inner, defaults = self.__wrapped__, _defaults(self.__wrapped__)
        model = kwargs.get("model") or getattr(request, "model", None) or defaults.get("model")
        limits = (*(kwargs.get(name) for name in _OUTPUT_LIMITS), getattr(request, "max_output_tokens", None))
        known = _ask(inner, "output_limit", request, **kwargs)
        usual = defaults.get("max_output_tokens") if model == defaults.get("model") else None
        output = next((each for each in (*limits, known, usual) if type(each) is int and each > 0), None)

        def estimate_cost(input_tokens: int, output_tokens: int) -> Decimal | None:
            counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
            cost = _ask(inner, "estimate_cost", request, **{**kwargs, **counts})
            return cost if isinstance(cost, Decimal) and cost >= 0 else None

        return await meter.open_model_call(
            ModelCall(
                provider=str(self.name),
                model=str(model or ""),
                input_tokens=self._density.applied(request_tokens(request)) if meter.limits_size else 0,
                output_tokens=output,
                estimate_cost=estimate_cost,
                density=self._density,
            )
        )


@final
class _MeteredStream:
    """The answer of one metered call in pieces; can be entered or iterated over, as the provider's own."""

    def __init__(self, provider: MeteredProvider, stream: Any, request: Any, kwargs: dict[str, Any]) -> None:
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
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
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


def _limited(request: Any, kwargs: dict[str, Any], output_tokens: int | None) -> tuple[Any, dict[str, Any]]:
    """The same request with a limit of output tokens; what the caller gave is not changed."""
    if output_tokens is None:
        return request, kwargs
    kwargs = {name: output_tokens if name in _OUTPUT_LIMITS else value for name, value in kwargs.items()}
    if not hasattr(request, "max_output_tokens"):
        return request, {**kwargs, "max_tokens": output_tokens}
    request = copy.copy(request)
    request.max_output_tokens = output_tokens
    return request, kwargs


def _ask(provider: Any, name: str, request: Any, **kwargs: Any) -> Any:
    """What an optional member of a provider answers; None if it has none, or if that fails."""
    member = getattr(provider, name, None)
    try:
        return None if member is None else member(request, **kwargs)
    except Exception:  # noqa: BLE001 — a provider is foreign code; what it does not say is not known
        return None


def _defaults(provider: Any) -> dict[str, Any]:
    try:
        defaults = provider.get_info().defaults
    except Exception:  # noqa: BLE001 — a provider is foreign code; without its description less is known
        return {}
    return defaults if isinstance(defaults, dict) else {}
