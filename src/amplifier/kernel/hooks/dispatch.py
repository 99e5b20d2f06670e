"""The call loop: runs the handlers of one event, one after another, in the emitter's task.

The hot path of the kernel. At most one cancel scope per dispatch, opened when the first handler has something to await; its
deadline moves from handler to handler. Every handler gets its own copy of the payload. Sits on `merge` and `deadlines`; `registry`
above decides who is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Protocol

import anyio

from amplifier._json import copy_json, redact_text
from amplifier.models import HookResult

from ..runtime.backend import loop_clock
from ..runtime.deadlines import DeadlineGroup, DeadlinePassed
from ..runtime.watchdog import Watchdog
from .merge import Verdict, is_plain_continue, parse_answer

logger = logging.getLogger("amplifier.hooks")

SLOW = 5.0
"""Seconds after which a handler is logged as slow, once."""


class Registry(Protocol):
    """Where a registration is kept."""

    def remove(self, registration: Registration) -> None:
        """Remove one registration; nothing happens if it was removed before."""


class Registration:
    """One handler for one event.

    Only one that the session's ledger lists knows its registry: an application's stays after the closing and must not form
    a cycle.
    """

    __slots__ = (
        "event",
        "handler",
        "live",
        "module",
        "name",
        "on_failure",
        "priority",
        "registry",
        "seq",
        "slow_logged",
        "timeout",
    )

    def __init__(
        self,
        event: str,
        handler: Callable[[str, dict[str, Any]], Any],
        priority: int,
        seq: int,
        name: str,
        timeout: float | None,
        on_failure: str,
        module: str | None,
        registry: Registry | None = None,
    ) -> None:
        self.event = event
        self.handler = handler
        self.priority = priority
        self.seq = seq
        self.name = name
        self.timeout = timeout
        self.on_failure = on_failure
        self.module = module
        self.registry = registry
        self.live = True
        self.slow_logged = False

    def __str__(self) -> str:
        module = f" of module {self.module!r}" if self.module else ""
        return f"handler {self.name!r}{module} for {self.event!r}"

    def withdraw(self, key: object, owner: str) -> None:
        """Remove it if this module registered it."""
        if owner == self.module and self.registry is not None:
            self.registry.remove(self)

    def drop(self, key: object) -> None:
        """Remove it; it has been struck from the ledger."""
        registry, self.registry = self.registry, None
        if registry is not None:
            registry.remove(self)


class Failure:
    """A handler that raised or overran, for the log and the ``hook:*`` events."""

    __slots__ = ("error", "registration")

    def __init__(self, registration: Registration, error: Exception) -> None:
        self.registration = registration
        self.error = error


class Dispatch:
    """One emit: the payload, the verdict so far, the failures."""

    __slots__ = ("_owned", "_series", "_verdict", "event", "failures", "payload")

    def __init__(
        self,
        event: str,
        payload: dict[str, Any],
        owned: Mapping[str, Any],
        watch: Watchdog | None = None,
        limit: float | None = None,
    ) -> None:
        self.event = event
        self.payload = payload
        self.failures: list[Failure] | None = None
        self._owned = owned
        self._verdict: Verdict | None = None
        self._series = DeadlineGroup(watch, limit)

    async def run(self, handlers: tuple[Registration, ...]) -> HookResult:
        """Call the handlers in order until one denies.

        Raises:
            BaseException: A real cancellation of the emitter, Ctrl-C or exit; never a handler's own failure.
        """
        series = self._series
        clock = series.clock
        event = self.event
        now = clock()
        try:
            for registration in handlers:
                if not registration.live:  # unregistered since this dispatch began
                    continue
                view = copy_json(self.payload)
                armed = False
                try:
                    answer = registration.handler(event, view)
                    if answer is not None and (type(answer) is CoroutineType or isawaitable(answer)):
                        series.label = registration
                        series.arm(registration.timeout, now, answer)
                        armed = True
                        answer = await answer
                except BaseException as exc:  # noqa: BLE001 — handlers are foreign code; judge() lets through what is not theirs
                    if self._failed(registration, series.judge(exc)):
                        break
                    now = clock()
                    continue
                began, now = now, clock()
                if now - began > SLOW:
                    self._note_slow(registration, now - began)
                if armed and now >= series.until:  # it swallowed its cancellation and answered all the same
                    if self._failed(registration, series.renew()):
                        break
                elif answer is not None and self._took(registration, answer):
                    break
            return self.result()
        finally:
            series.close()

    def result(self) -> HookResult:
        """The merged result of the handlers called so far."""
        if self._verdict is None:
            return HookResult(action="continue", data=self.payload)
        return self._verdict.result()

    def _took(self, registration: Registration, answer: Any) -> bool:
        """Take in an answer; True ends the dispatch."""
        if type(answer) is HookResult and is_plain_continue(answer):
            return False
        result = parse_answer(answer)
        if result is None:
            return False
        return self._add(result, registration.name)

    def _add(self, result: HookResult, name: str) -> bool:
        if self._verdict is None:
            self._verdict = Verdict(self.event, self.payload, self._owned)
        denied = self._verdict.add(result, name)
        self.payload = self._verdict.payload
        return denied

    def _failed(self, registration: Registration, error: Exception) -> bool:
        """A handler raised or was cut off; True when that denies."""
        if self.failures is None:
            self.failures = []
        self.failures.append(Failure(registration, error))
        denies = registration.on_failure == "deny"
        outcome = "denied, because it is a gate" if denies else "skipped"
        if isinstance(error, DeadlinePassed):
            logger.error("%s overran its deadline and was cancelled (%s): %s", registration, error, outcome)
        else:
            logger.error("%s failed with %s: %s", registration, _words(error), outcome, exc_info=error)
        if not denies:
            return False
        reason = f"gate {registration.name!r} failed: {_words(error)}"
        return self._add(HookResult(action="deny", reason=reason), registration.name)

    def _note_slow(self, registration: Registration, seconds: float) -> None:
        if not registration.slow_logged:
            registration.slow_logged = True
            logger.warning("%s is slow: it took %.1f s", registration, seconds)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, DeadlinePassed) else f"{type(error).__name__}: {text_of(error)}"


def text_of(error: Exception) -> str:
    """What an exception says, without secrets, even if its own ``__str__`` fails: that is foreign code as well.

    It goes into events and, as the reason of a denial, to the model.
    """
    try:
        return redact_text(str(error))
    except Exception as broken:  # noqa: BLE001 — see above
        return f"(its text cannot be shown: {type(broken).__name__})"


def _log_skipped(registration: Registration, error: Exception, seconds: float) -> None:
    if isinstance(error, DeadlinePassed):
        logger.warning("%s gave no answer within %g s: skipped", registration, seconds)
    else:
        logger.error("%s failed with %s: skipped", registration, _words(error), exc_info=error)


async def collect(
    event: str,
    payload: dict[str, Any],
    handlers: tuple[Registration, ...],
    timeout: float,
    watch: Watchdog | None = None,
) -> list[dict[str, Any]]:
    """Call all handlers at once, with one deadline, and return the data of their results in handler order."""
    answers: list[Any] = [None] * len(handlers)
    fatal: list[BaseException] = []
    until = loop_clock()() + timeout

    async def ask(index: int, registration: Registration) -> None:
        if not registration.live:  # unregistered by a handler that was faster
            return
        series = DeadlineGroup(watch)
        try:
            answer = registration.handler(event, copy_json(payload))
            if isawaitable(answer):
                answer = await series.run(answer, until - series.clock(), registration)
            answers[index] = answer
        except KeyboardInterrupt as exc:
            # Raised in the emitter's task below: in a task of its own, asyncio would tear the loop down.
            fatal.append(exc)
            group.cancel_scope.cancel()
        except BaseException as exc:  # noqa: BLE001 — handlers are foreign code; judge() lets through what is not theirs
            _log_skipped(registration, series.judge(exc), timeout)
        finally:
            series.close()

    async with anyio.create_task_group() as group:
        for index, registration in enumerate(handlers):
            group.start_soon(ask, index, registration, name=str(registration))
    if fatal:
        raise fatal.pop(0)
    results = [parse_answer(answer) for answer in answers]
    return [result.data for result in results if result is not None and result.data is not None]
