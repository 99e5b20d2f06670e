"""The call loop: runs the handlers of one event, one after another, in the emitter's task.

The hot path of the kernel. At most one cancel scope per dispatch, opened when the first handler has something to await and may wait
for it; its deadline moves from handler to handler. Every handler gets its own copy of the payload, or of the fields that it reads. Sits on `merge` and `deadlines`; `registry`
above decides who is called.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from inspect import isawaitable
from types import CodeType, CoroutineType, FunctionType
from typing import Any, Protocol

import anyio

from amplifier._json import LEAVES, copies_for, copy_json, redact_text
from amplifier.contracts._containment import text_of as plain_text_of
from amplifier.contracts._scopes import loop_clock
from amplifier.errors import ContractError, ModelError
from amplifier.models import HookResult

from ..runtime.deadlines import DeadlineGroup, DeadlinePassed, call_foreign, run_bounded
from ..runtime.running_call import RunningCall
from ..runtime.stepping import function_of, never_waits
from ..runtime.watchdog import Watchdog
from .field_reads import fields_read_by
from .merge import Verdict, is_invalid_response, is_plain_continue, parse_answer

logger: logging.Logger = logging.getLogger("amplifier.hooks")

SLOW = 5.0
"""Seconds after which a handler is logged as slow, once."""

_SEVERAL = 3
"""Handlers from which on preparing the copies of a large payload takes less time than it saves."""

_LONGEST_SEARCHED, _LONGEST_SHOWN = 10_000, 200
"""Characters of an invalid answer that are searched for secrets, and of these what the log shows."""


_KERNEL_FIELDS = ("timestamp", "session_id", "parent_id", "parent_call_id")
"""Fields that a handler receives whatever it asked for."""


class Registry(Protocol):
    """Where a registration is kept."""

    def remove(self, registration: Registration) -> None:
        """Remove one registration; nothing happens if it was removed before."""


class Registration:
    """One handler for one event.

    It receives the ``fields`` that it asked for or, as its code shows, can read; None for all. If it asked, it is partial: what
    it returns is about these fields.

    Only one that the session's ledger lists knows its registry: an application's stays after the closing and must not form
    a cycle.
    """

    __slots__ = (
        "code",
        "event",
        "fields",
        "function",
        "handler",
        "is_gate",
        "is_partial",
        "live",
        "module",
        "name",
        "never_waits",
        "on_failure",
        "priority",
        "registry",
        "seconds",
        "seq",
        "slow_logged",
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
        fields: Collection[str] | None = None,
    ) -> None:
        self.event: str = event
        self.is_partial: bool = fields is not None
        self.fields: tuple[str, ...] | None = (
            None if fields is None else _with_kernel_fields(tuple(map(str.__str__, fields)))
        )
        self.handler: Callable[[str, dict[str, Any]], Any] = handler
        self.priority: int = priority
        self.seq: int = seq
        self.name: str = name
        self.seconds: float = math.inf if timeout is None else timeout
        self.on_failure: str = on_failure
        self.is_gate: bool = on_failure == "deny"
        self.module: str | None = module
        self.registry = registry
        self.live: bool = True
        self.slow_logged: bool = False
        self.function: FunctionType | None = function_of(handler)
        self.code: CodeType | None = None
        self.never_waits: bool = False
        self.look_at_code()

    def look_at_code(self) -> None:
        """See in the handler's code what it reads and whether it may wait; again when a reloader has replaced the code."""
        self.code = None if self.function is None else self.function.__code__
        self.never_waits = never_waits(self.handler)
        if not self.is_partial:
            read = fields_read_by(self.handler)
            self.fields = None if read is None else _with_kernel_fields(read)

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


def look_at_replaced_code(handlers: tuple[Registration, ...]) -> None:
    """Look again at handlers that have new code: reloaders, such as those of notebooks, replace the code of functions."""
    for registration in handlers:
        if registration.function is not None and registration.function.__code__ is not registration.code:
            registration.look_at_code()


@lru_cache(maxsize=1024)
def _with_kernel_fields(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields and those of the kernel. The same object for the same fields, so that a dispatch sees that at once."""
    return tuple(dict.fromkeys((*fields, *_KERNEL_FIELDS)))


class Failure:
    """A handler that raised or overran, for the log and the ``hook:*`` events."""

    __slots__ = ("error", "registration")

    def __init__(self, registration: Registration, error: Exception) -> None:
        self.registration: Registration = registration
        self.error: Exception = error


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
        self.event: str = event
        self.payload: dict[str, Any] = payload
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
        copied, fields = self.payload, handlers[0].fields
        copy = _copy_maker(copied, fields, handlers)
        makers = {fields: copy}
        try:
            for registration in handlers:
                if not registration.live:  # unregistered since this dispatch began
                    continue
                if registration.fields is not fields or self.payload is not copied:
                    if self.payload is not copied:  # a handler has modified it
                        copied = self.payload
                        makers = {}
                    fields = registration.fields
                    copy = makers.get(fields) or makers.setdefault(fields, _copy_maker(copied, fields, handlers))
                armed = is_brief = False
                view = copy()
                try:
                    answer = registration.handler(event, view)
                    if answer is not None and (type(answer) is CoroutineType or isawaitable(answer)):
                        if registration.never_waits:
                            is_brief = True
                        else:
                            series.label = registration
                            series.arm(registration.seconds, now, answer)
                            armed = True
                        answer = await answer
                except BaseException as exc:  # noqa: BLE001 — handlers are foreign code; judge() lets through what is not theirs
                    if self._failed(registration, series.judge(exc, is_armed=armed)):
                        break
                    now = clock()
                    continue
                began, now = now, clock()
                if now - began > SLOW:
                    self._note_slow(registration, now - began)
                if armed and now >= series.until:  # it swallowed its cancellation and answered all the same
                    if self._failed(registration, series.renew()):
                        break
                elif is_brief and (now - began >= registration.seconds or began < series.limit <= now):
                    if self._failed(registration, series.lateness(registration.seconds, began)):
                        break
                elif answer is not None:
                    if self._took(registration, answer):
                        break
                elif registration.is_gate and self._unanswered(registration, None):
                    break
            return self.result()
        finally:
            series.close()

    def running_call(self) -> RunningCall | None:
        """The handler that is being waited for."""
        return self._series.running_call()

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
            return registration.is_gate and self._unanswered(registration, answer)
        denied = self._add(result, registration.name, is_partial=registration.is_partial)
        if denied and (result.action != "deny" or is_invalid_response(result, answer)):
            self._note_failure(registration, _log_invalid(registration, answer, "denied"))
        return denied

    def _unanswered(self, registration: Registration, answer: Any) -> bool:
        """A gate returned nothing, as one that forgets its ``return`` does; True when that denies."""
        problem = f"it returned {answer!r}; a gate must return a HookResult, such as HookResult() to let the event pass"
        return self._failed(registration, ContractError(problem, module=registration.module, clause="H3"))

    def _add(self, result: HookResult, name: str, *, is_partial: bool = False) -> bool:
        if self._verdict is None:
            self._verdict = Verdict(self.event, self.payload, self._owned)
        denied = self._verdict.add(result, name, is_partial=is_partial)
        self.payload = self._verdict.payload
        return denied

    def _failed(self, registration: Registration, error: Exception) -> bool:
        """A handler raised, was cut off or, as a gate, gave no answer; True when that denies."""
        self._note_failure(registration, error)
        outcome = "denied, because it is a gate" if registration.is_gate else "skipped"
        if isinstance(error, DeadlinePassed):
            where = error.where or "no await of its own"
            logger.error(
                "%s overran its deadline and was cancelled (%s, waiting at %s): %s", registration, error, where, outcome
            )
        else:
            logger.error("%s failed with %s: %s", registration, _words(error), outcome, exc_info=error)
        if not registration.is_gate:
            return False
        reason = f"gate {registration.name!r} failed: {_words(error)}"
        return self._add(HookResult(action="deny", reason=reason), registration.name)

    def _note_failure(self, registration: Registration, error: Exception) -> None:
        if self.failures is None:
            self.failures = []
        self.failures.append(Failure(registration, error))

    def _note_slow(self, registration: Registration, seconds: float) -> None:
        if not registration.slow_logged:
            registration.slow_logged = True
            logger.warning("%s is slow: it took %.1f s", registration, seconds)


def _copy_maker(payload: Any, fields: tuple[str, ...] | None, handlers: tuple[Registration, ...]) -> Callable[[], Any]:
    """What returns a copy of these fields of the payload, or of all of it, for one handler."""
    if fields is None or not isinstance(payload, dict):  # the alias has others
        return partial(_copier(payload, None, handlers), payload)
    selected = {field: payload[field] for field in fields if field in payload}
    if LEAVES.issuperset(map(type, selected.values())):
        return selected.copy
    return partial(_copier(selected, fields, handlers), selected)


def _copier(value: Any, fields: tuple[str, ...] | None, handlers: tuple[Registration, ...]) -> Callable[[Any], Any]:
    """What copies the payload, or these fields of it: it prepares the copies if that is large and for enough handlers."""
    if len(handlers) < _SEVERAL or (copies := copies_for(value)) is None:
        return copy_json
    receivers = sum(registration.fields == fields for registration in handlers)
    return copies.make if receivers >= _SEVERAL else copy_json


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, DeadlinePassed) else f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The text of an exception, without secrets, even if its own ``__str__`` fails: that is foreign code as well.

    It goes into events and, as the reason of a denial, to the model.
    """
    return redact_text(plain_text_of(error))


def _log_invalid(registration: Registration, answer: Any, outcome: str) -> ContractError:
    """Log an answer that could not be understood; returns the same as an error."""
    problem = f"returned {_shown(answer)}; expected a HookResult, a dict with its keys or None"
    logger.warning("%s %s: %s", registration, problem, outcome)
    return ContractError(problem, module=registration.module, clause="H3")


def _shown(answer: Any) -> str:
    """What a handler returned, shortened and without secrets, even if its own ``__repr__`` fails."""
    kind = type(answer).__name__
    try:
        text = redact_text(repr(answer)[:_LONGEST_SEARCHED])
    except Exception as broken:  # noqa: BLE001 — foreign code
        return f"the {kind} (it cannot be shown: {type(broken).__name__})"
    return f"the {kind} {text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + '…'}"


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
    makers: dict[tuple[str, ...] | None, Callable[[], Any]] = {}

    async def ask(index: int, registration: Registration) -> None:
        if not registration.live:  # unregistered by a handler that was faster
            return
        try:
            fields = registration.fields
            copy = makers.get(fields) or makers.setdefault(fields, _copy_maker(payload, fields, handlers))
            answer = call_foreign(registration.handler, event, copy())
            if isawaitable(answer):
                answer = await run_bounded(answer, until - loop_clock()(), registration, watch)
            answers[index] = answer
        except KeyboardInterrupt as exc:
            # Raised in the emitter's task below: in a task of its own, asyncio would tear the loop down.
            fatal.append(exc)
            group.cancel_scope.cancel()
        except Exception as exc:  # noqa: BLE001 — handlers are foreign code; what is not theirs has passed already
            _log_skipped(registration, exc, timeout)

    async with anyio.create_task_group() as group:
        for index, registration in enumerate(handlers):
            group.start_soon(ask, index, registration, name=str(registration))
    if fatal:
        raise fatal.pop(0)
    collected: list[dict[str, Any]] = []
    for registration, answer in zip(handlers, answers, strict=True):
        result = parse_answer(answer)
        if result is None:
            continue
        if is_invalid_response(result, answer):
            _log_invalid(registration, answer, "skipped")
        elif result.data is not None:
            try:
                collected.append(copy_json(result.data))
            except ModelError:  # it contains itself
                _log_invalid(registration, answer, "skipped")
    return collected
