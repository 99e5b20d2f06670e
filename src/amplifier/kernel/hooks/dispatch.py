"""Call the handlers of one event, one after another, in the emitter's task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from inspect import isawaitable
from itertools import chain
from types import CoroutineType

import anyio
import attrs

from amplifier._internal.json import JSON, copy_json, is_same_json, redact_text
from amplifier.contracts import Handler, OnFailure
from amplifier.contracts.cancellation import current_time
from amplifier.errors import ContractError, ModelError
from amplifier.events import TOOL_PRE
from amplifier.models import HookResult

from ..runtime.deadlines import (
    DeadlinePassed,
    ReusableDeadline,
    call_foreign,
    failure_words,
    run_bounded,
)
from ..runtime.frames import WaitInfo
from ..runtime.owner import Owner
from ..runtime.watchdog import Watchdog
from .merge import (
    INVALID_RESPONSE,
    InvalidAnswer,
    Verdict,
    continued,
    is_plain_continue,
    parse_answer,
    was_modified,
)

logger: logging.Logger = logging.getLogger("amplifier.hooks")

SLOW_HANDLER_SECONDS = 5.0
"""Seconds after which a handler is logged as slow, once."""

# Maximum number of characters of an invalid answer to redact and log.
_MAX_SEARCHED = 10_000
_MAX_SHOWN = 200


@attrs.define(eq=False, kw_only=True, weakref_slot=False)
class Registration:
    """One handler for one event.

    Attributes:
        event: The name of the event, or ``"*"``.
        handler: The handler.
        priority: A handler with a lower priority runs earlier.
        seq: The number of the registration, which orders handlers of one priority.
        name: The handler's name, for logs and ``unregister``.
        seconds: The handler's deadline in seconds. Infinite for no limit.
        on_failure: The effect of a failure: "continue" skips the handler, "deny" makes it a gate.
        owner: The module that registered it, or None for the application.
        fields: The fields of a payload that the handler receives, including the kernel's own. None
            means the whole payload. The answer applies to these fields only.
        on_demand: True if the handler requires no field that no other handler receives.
        live: False once the registration has been removed.
        slow_logged: True once the handler has been logged as slow.
    """

    event: str
    handler: Handler
    priority: int
    seq: int
    name: str
    seconds: float
    on_failure: OnFailure
    owner: Owner | None
    fields: tuple[str, ...] | None
    on_demand: bool = False
    live: bool = True
    slow_logged: bool = False

    def __str__(self) -> str:
        module = f" of module {self.module!r}" if self.module else ""
        return f"handler {self.name!r}{module} for {self.event!r}"

    @property
    def module(self) -> str | None:
        """The id of the module that registered it, or None for the application."""
        return None if self.owner is None else self.owner.name

    @property
    def is_gate(self) -> bool:
        """True if a failure of the handler denies the event."""
        return self.on_failure == "deny"

    def copy_of(self, payload: JSON) -> JSON:
        """Return the handler's own copy of a payload, or of the fields that it receives.

        Raises:
            ModelError: The payload is circular or too deep.
        """
        # Through amplifier_core's registry, a payload may be something other than a dict.
        if self.fields is None or not isinstance(payload, dict):
            return copy_json(payload)
        return copy_json({field: payload[field] for field in self.fields if field in payload})


# This is the hot path of the kernel. A dispatch opens at most one cancel scope, when the first
# handler returns an awaitable, and moves its deadline from handler to handler. So `run` performs
# the steps of ReusableDeadline.run itself, and sync handlers need no scope at all.


class Dispatch:
    """One emit: the payload, the verdict so far, and the handlers that failed.

    Args:
        event: The name of the event.
        payload: The payload that the first handler receives.
        owned: The fields of the payload that no handler can change.
        watch: Reports handlers that don't react to their cancellation.
        limit: Seconds for all handlers together, or None for no limit.

    Attributes:
        event: The name of the event.
        payload: The payload that the next handler receives.
        failures: The handlers that failed, each with its error.
    """

    __slots__ = (
        "_changed_by",
        "_deadline",
        "_is_rerun",
        "_owned",
        "_verdict",
        "event",
        "failures",
        "payload",
    )

    def __init__(
        self,
        event: str,
        payload: dict[str, JSON],
        owned: Mapping[str, JSON],
        watch: Watchdog | None = None,
        limit: float | None = None,
    ) -> None:
        self.event: str = event
        self.payload: dict[str, JSON] = payload
        self.failures: list[tuple[Registration, Exception]] = []
        self._owned = owned
        self._verdict: Verdict | None = None
        self._changed_by: Registration | None = None
        self._is_rerun = False
        self._deadline = ReusableDeadline(watch, limit)

    async def run(self, handlers: tuple[Registration, ...]) -> HookResult:
        """Call the handlers in order until one denies.

        Raises:
            BaseException: A real cancellation of the emitter, a KeyboardInterrupt or an exit. The
                failure of a handler isn't raised.
        """
        deadline = self._deadline
        clock = deadline.clock
        event = self.event
        now = clock()
        try:
            for registration in chain(handlers, self._gates_to_rerun(handlers)):
                # The handler may have been removed since this dispatch started.
                if not registration.live:
                    continue
                data = registration.copy_of(self.payload)
                is_armed = False
                try:
                    answer: object = registration.handler(event, data)
                    if answer is not None and (
                        type(answer) is CoroutineType or isawaitable(answer)
                    ):
                        deadline.label = registration
                        deadline.arm(registration.seconds, now, answer)
                        is_armed = True
                        answer = await answer
                except BaseException as exc:  # noqa: BLE001 — foreign code
                    if self._handle_failure(
                        registration, deadline.classify_exception(exc, is_armed=is_armed)
                    ):
                        break
                    now = clock()
                    continue
                began, now = now, clock()
                if now - began > SLOW_HANDLER_SECONDS and not registration.slow_logged:
                    registration.slow_logged = True
                    logger.warning("%s is slow: it took %.1f s", registration, now - began)
                # The handler blocked, or swallowed its cancellation. A handler that started after
                # the deadline isn't blamed for the delay.
                if is_armed and began < deadline.until <= now:
                    if self._handle_failure(registration, deadline.reset_expired()):
                        break
                elif (answer is not None or registration.is_gate) and self._process_answer(
                    registration, answer
                ):
                    break
            return self.result()
        finally:
            deadline.close()

    def _gates_to_rerun(self, handlers: tuple[Registration, ...]) -> Iterator[Registration]:
        """Yield the gates that ran before a later handler changed the input of a tool.

        Their decision was about an input other than the one that the tool is called with.
        """
        if self._changed_by is not None and self._verdict is not None:
            self._is_rerun = True
            for registration in handlers[: handlers.index(self._changed_by)]:
                if registration.is_gate or registration.seq in self._verdict.gates:
                    self._verdict.gates.pop(registration.seq, None)
                    yield registration

    def wait_info(self) -> WaitInfo | None:
        """Describe the awaited handler, for reports about sessions that hang."""
        return self._deadline.wait_info()

    def result(self) -> HookResult:
        """Return the merged result of the handlers called so far."""
        if self._verdict is None:
            return continued(self.payload)
        return self._verdict.result()

    def _process_answer(self, registration: Registration, answer: object) -> bool:
        """Merge the answer of a handler. Return True if it ends the dispatch."""
        if type(answer) is HookResult and is_plain_continue(answer):
            return False
        try:
            result = parse_answer(answer)
            if result is not None:
                return self._add(result, registration)
        except InvalidAnswer as problem:
            error = _log_invalid(registration, answer, problem, "denied")
            self.failures.append((registration, error))
            return self._add(HookResult(action="deny", reason=str(problem)), registration)
        if not registration.is_gate:
            return False
        # A gate without a ``return`` statement returns None.
        advice = "a gate must return a HookResult, such as HookResult() to let the event pass"
        text = f"it returned {answer!r}; {advice}"
        missing = ContractError(text, module=registration.module, clause="H3")
        return self._handle_failure(registration, missing)

    def _add(self, result: HookResult, registration: Registration) -> bool:
        if self._verdict is None:
            self._verdict = Verdict(self.event, self.payload, self._owned)
        verdict, name, before = self._verdict, registration.name, self.payload
        if self._is_rerun and result.action != "deny":
            changed = {**before, **(result.data or {})}
            if not was_modified(result) or _has_same_input(before, changed):
                # The rest of its answer was merged the first time.
                verdict.ask(result, name, registration.seq)
                return False
            reason = f"hook {name!r} and a later one change the input in turns"
            result = HookResult(action="deny", reason=reason)
        is_partial = registration.fields is not None
        denied = verdict.add(result, name, is_partial=is_partial, key=registration.seq)
        self.payload = verdict.payload
        if (
            self.event == TOOL_PRE
            and self.payload is not before
            and not _has_same_input(before, self.payload)
        ):
            self._changed_by = registration
        return denied

    def _handle_failure(self, registration: Registration, error: Exception) -> bool:
        """Log a failure, a timeout, or a gate without an answer. Return True if it denies."""
        self.failures.append((registration, error))
        outcome = "denied, because it is a gate" if registration.is_gate else "skipped"
        if isinstance(error, DeadlinePassed):
            logger.error(
                "%s overran its deadline and was cancelled (%s, waiting at %s): %s",
                registration,
                error,
                error.where or "no await of its own",
                outcome,
            )
        else:
            words = failure_words(error)
            logger.error("%s failed with %s: %s", registration, words, outcome, exc_info=error)
        if not registration.is_gate:
            return False
        reason = f"gate {registration.name!r} failed: {failure_words(error)}"
        return self._add(HookResult(action="deny", reason=reason), registration)


async def collect(
    event: str,
    payload: dict[str, JSON],
    handlers: tuple[Registration, ...],
    timeout: float,
    watch: Watchdog | None = None,
) -> list[dict[str, JSON]]:
    """Call all handlers at once under one deadline.

    Returns:
        The data of their results, in the order of the handlers.

    Raises:
        KeyboardInterrupt: It hit a handler. The others were cancelled.
    """
    answers: list[object] = [None] * len(handlers)
    interrupts: list[BaseException] = []
    until = current_time() + timeout

    async def ask(index: int, registration: Registration) -> None:
        # A faster handler may have removed this one.
        if not registration.live:
            return
        try:
            data = registration.copy_of(payload)
            answer: object = call_foreign(registration.handler, event, data)
            if isawaitable(answer):
                answer = await run_bounded(answer, until - current_time(), registration, watch)
            answers[index] = answer
        except DeadlinePassed:
            logger.warning("%s gave no answer within %g s: skipped", registration, timeout)
        except Exception as exc:  # foreign code
            words = failure_words(exc)
            logger.error("%s failed with %s: skipped", registration, words, exc_info=exc)
        except KeyboardInterrupt as interrupt:
            # If a task raised it, it would stop asyncio's loop, and the task group would wrap it.
            interrupts.append(interrupt)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for index, registration in enumerate(handlers):
                group.start_soon(ask, index, registration, name=str(registration))
    except BaseExceptionGroup as wrapped:
        # Trio wraps a KeyboardInterrupt that hits the waiting emitter.
        interrupts += wrapped.exceptions
    if interrupts:
        try:
            raise interrupts[0]
        finally:
            # Break the reference cycle with the traceback.
            interrupts.clear()
    collected: list[dict[str, JSON]] = []
    for registration, answer in zip(handlers, answers, strict=True):
        try:
            result = parse_answer(answer)
            if result is not None and result.data is not None:
                collected.append(copy_json(result.data))
        # Data that contains itself raises ModelError.
        except (InvalidAnswer, ModelError) as problem:
            _log_invalid(registration, answer, problem, "skipped")
    return collected


def _has_same_input(before: JSON, after: JSON) -> bool:
    if not isinstance(before, dict):
        return True
    return is_same_json(before.get("tool_input"), after.get("tool_input"))


# ── log ───────────────────────────────────────────────────────────────────────────────────────


def _log_invalid(
    registration: Registration, answer: object, problem: Exception, outcome: str
) -> ContractError:
    """Log an invalid answer, and return it as an error."""
    text = f"returned {_shown(answer)}; expected a HookResult, a dict with its keys or None"
    if str(problem) != INVALID_RESPONSE:
        text += f" ({problem})"
    logger.warning("%s %s: %s", registration, text, outcome)
    return ContractError(text, module=registration.module, clause="H3")


def _shown(answer: object) -> str:
    """Return an answer as text, shortened and without secrets, even if its ``__repr__`` fails."""
    kind = type(answer).__name__
    try:
        text = redact_text(repr(answer)[:_MAX_SEARCHED])
    except Exception as broken:  # noqa: BLE001 — foreign code
        return f"the {kind} (it cannot be shown: {type(broken).__name__})"
    return f"the {kind} {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '…'}"
