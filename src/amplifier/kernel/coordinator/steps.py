"""Step wrappers: what modules put around every model call and every tool call, for example to record its result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs

from amplifier.contracts import Step, StepWrapper, call_scope, contained_failure
from amplifier.contracts._scopes import cancel_scope, loop_clock
from amplifier.errors import DeadlineExceeded

from .ownership import Ledger, Registration, Registry

Call = Callable[[], Awaitable[Any]]


@attrs.define(eq=False)
class _WrapperRegistration(Registration):
    """One wrapper, and the module that registered it."""

    wrapper: StepWrapper
    owner: str | None
    kept_by: Registry | None

    def __str__(self) -> str:
        name = getattr(self.wrapper, "__qualname__", None) or type(self.wrapper).__qualname__
        return f"step wrapper {name!r}" + (f" of module {self.owner!r}" if self.owner else "")


class StepWrappers:
    """The step wrappers of one session, outermost first."""

    __slots__ = ("_ledger", "_registered")

    def __init__(self, ledger: Ledger) -> None:
        self._registered: tuple[_WrapperRegistration, ...] = ()
        self._ledger = ledger

    def register(self, wrapper: Any, owner: str | None) -> Callable[[], None]:
        """Add a wrapper inside of those that are there.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(wrapper):
            raise TypeError(f"a step wrapper must be an async function (step, run), got {wrapper!r}")
        registration = _WrapperRegistration(wrapper, owner, None if owner is None else self)
        self._registered = (*self._registered, registration)
        if owner is not None:
            self._ledger.enter(registration, registration)
        return lambda: self.remove(registration)

    def remove(self, registration: _WrapperRegistration) -> None:
        """Remove a wrapper; steps that are inside of it go on. Nothing happens if it was removed before."""
        self._registered = tuple(each for each in self._registered if each is not registration)
        if registration.owner is not None:
            self._ledger.strike(registration)

    async def run(
        self, step: Step, run: Call, admit: Call | None, limiter: anyio.CapacityLimiter | None, seconds: float | None
    ) -> Any:
        """Run a step inside of all wrappers that are registered now; ``seconds`` is for their own work, each way."""
        with call_scope(step.call):
            if self._registered:
                return await _WrappedStep(self._registered, step, run, admit, limiter, seconds).run()
            if limiter is not None:
                return await _make_call(run, admit, limiter)
            refused = None if admit is None else await admit()
            return await run() if refused is None else refused


async def _make_call(
    run: Call, admit: Call | None, limiter: anyio.CapacityLimiter | None, start: Call | None = None
) -> Any:
    if limiter is not None:
        async with limiter:
            return await _make_call(run, admit, None, start)
    refused = None if admit is None else await admit()
    if refused is not None:
        return refused
    if start is not None:
        await start()
    return await run()


class _WrappedStep:
    """One step with wrappers around it.

    One cancel scope has the deadline of the wrappers. It is infinite while the call itself runs, which has its own.
    """

    __slots__ = ("_admit", "_around", "_limiter", "_run", "_scope", "_seconds", "_step")

    def __init__(
        self,
        around: tuple[_WrapperRegistration, ...],
        step: Step,
        run: Call,
        admit: Call | None,
        limiter: anyio.CapacityLimiter | None,
        seconds: float | None,
    ) -> None:
        self._around = around
        self._step = step
        self._run = run
        self._admit = admit
        self._limiter = limiter
        self._seconds = seconds
        self._scope = cancel_scope()

    async def run(self) -> Any:
        try:
            await self._step.wait_for_previous()
            with self._scope:
                self._arm()
                return await self._enter(0)
        finally:
            self._step.leave_order()
        assert self._seconds is not None
        wrappers = ", ".join(map(str, self._around))
        raise DeadlineExceeded(
            f"{wrappers}: step {self._step.key!r} was not entered or left within {self._seconds:g} s; a wrapper may wait "
            "for its own storage, not for other steps",
            operation=wrappers,
            seconds=self._seconds,
        )

    def _arm(self) -> None:
        self._scope.deadline = math.inf if self._seconds is None else loop_clock()() + self._seconds

    async def _enter(self, depth: int) -> Any:
        if depth == len(self._around):
            return await self._make_call()
        registration = self._around[depth]

        async def run() -> Any:
            return await self._enter(depth + 1)

        try:
            return await registration.wrapper(self._step, run)
        except Exception:
            raise
        except BaseException as exc:  # a wrapper is foreign code
            raise contained_failure(exc, str(registration)) from exc

    async def _make_call(self) -> Any:
        self._scope.deadline = math.inf
        try:
            await self._step.wait_for_group()
            return await _make_call(self._run, self._admit, self._limiter, self._start)
        finally:
            self._arm()

    async def _start(self) -> None:
        self._arm()
        await self._step.start()
        self._scope.deadline = math.inf
