"""The call loop: runs the handlers of one event, one after another, in the emitter's task.

The hot path of the kernel. At most one cancel scope per dispatch, opened when the first handler has something to await; its deadline
moves from handler to handler. Every handler gets its own copy of the payload, or of the fields that it asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from inspect import isawaitable
from itertools import chain
from types import CoroutineType
from typing import Any

import anyio
import attrs

from amplifier._json import copy_json, is_same_json, redact_text
from amplifier.contracts import OnFailure
from amplifier.contracts._cancellation import current_time
from amplifier.errors import ContractError, ModelError
from amplifier.events import TOOL_PRE
from amplifier.models import HookResult

from ..runtime.deadlines import DeadlinePassed, ReusableDeadline, call_foreign, failure_words, run_bounded
from ..runtime.frames import WaitInfo
from ..runtime.owner import Owner
from ..runtime.watchdog import Watchdog
from .merge import INVALID_RESPONSE, InvalidAnswer, Verdict, continued, is_plain_continue, parse_answer, was_modified

logger: logging.Logger = logging.getLogger("amplifier.hooks")

SLOW_HANDLER_SECONDS = 5.0
"""Seconds after which a handler is logged as slow, once."""

_MAX_SEARCHED, _MAX_SHOWN = 10_000, 200
"""Characters of an invalid answer that are searched for secrets, and of these what the log shows."""


@attrs.define(eq=False, kw_only=True, weakref_slot=False)
class Registration:
    """One handler for one event.

    Attributes:
        fields: What it receives of a payload, the kernel's own fields included; None for everything. What a handler of some
            fields returns is about these fields.
        on_demand: It needs no field that no other handler receives.
        seconds: Its deadline; infinite for none.
        owner: The module that registered it; None for the application.
        live: It has not been removed.
    """

    event: str
    handler: Callable[[str, dict[str, Any]], Any]
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
        """The id of the module that registered it."""
        return None if self.owner is None else self.owner.name

    @property
    def is_gate(self) -> bool:
        """Whether its failure denies the event."""
        return self.on_failure == "deny"

    def copy_of(self, payload: Any) -> Any:
        """What this handler gets of a payload: dicts and lists of its own, so that it changes nothing for the others.

        Raises:
            ModelError: It is circular or too deep.
        """
        if self.fields is None or not isinstance(payload, dict):  # the alias has others
            return copy_json(payload)
        return copy_json({field: payload[field] for field in self.fields if field in payload})


class Dispatch:
    """One emit: the payload, the verdict so far, and the handlers that failed."""

    __slots__ = ("_changed_by", "_deadline", "_is_again", "_owned", "_verdict", "event", "failures", "payload")

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
        self.failures: list[tuple[Registration, Exception]] = []
        self._owned = owned
        self._verdict: Verdict | None = None
        self._changed_by: Registration | None = None
        self._is_again = False
        self._deadline = ReusableDeadline(watch, limit)

    async def run(self, handlers: tuple[Registration, ...]) -> HookResult:
        """Call the handlers in order until one denies.

        Raises:
            BaseException: A real cancellation of the emitter, Ctrl-C or exit; never a handler's own failure.
        """
        deadline = self._deadline
        clock = deadline.clock
        event = self.event
        now = clock()
        try:
            for registration in chain(handlers, self._gates_to_rerun(handlers)):
                if not registration.live:  # unregistered since this dispatch began
                    continue
                given = registration.copy_of(self.payload)
                is_armed = False
                try:
                    answer = registration.handler(event, given)
                    if answer is not None and (type(answer) is CoroutineType or isawaitable(answer)):
                        deadline.label = registration
                        deadline.arm(registration.seconds, now, answer)
                        is_armed = True
                        answer = await answer
                except BaseException as exc:  # noqa: BLE001 — handlers are foreign code; classify_exception() lets through what is not theirs
                    if self._failed(registration, deadline.classify_exception(exc, is_armed=is_armed)):
                        break
                    now = clock()
                    continue
                began, now = now, clock()
                if now - began > SLOW_HANDLER_SECONDS and not registration.slow_logged:
                    registration.slow_logged = True
                    logger.warning("%s is slow: it took %.1f s", registration, now - began)
                # It blocked, or swallowed its cancellation. One that began too late is not blamed for the time of others.
                if is_armed and began < deadline.until <= now:
                    if self._failed(registration, deadline.reset_expired()):
                        break
                elif (answer is not None or registration.is_gate) and self._process_result(registration, answer):
                    break
            return self.result()
        finally:
            deadline.close()

    def _gates_to_rerun(self, handlers: tuple[Registration, ...]) -> Iterator[Registration]:
        """After all handlers, those who judged another input of a tool than the one that is left: what was allowed is what runs."""
        if self._changed_by is not None and self._verdict is not None:
            self._is_again = True
            for registration in handlers[: handlers.index(self._changed_by)]:
                if registration.is_gate or registration.seq in self._verdict.gates:
                    self._verdict.gates.pop(registration.seq, None)
                    yield registration

    def wait_info(self) -> WaitInfo | None:
        """The handler that is being waited for."""
        return self._deadline.wait_info()

    def result(self) -> HookResult:
        """The merged result of the handlers called so far."""
        if self._verdict is None:
            return continued(self.payload)
        return self._verdict.result()

    def _process_result(self, registration: Registration, answer: Any) -> bool:
        """Take in an answer; True ends the dispatch."""
        if type(answer) is HookResult and is_plain_continue(answer):
            return False
        try:
            result = parse_answer(answer)
            if result is not None:
                return self._add(result, registration)
        except InvalidAnswer as problem:
            self.failures.append((registration, _log_invalid(registration, answer, problem, "denied")))
            return self._add(HookResult(action="deny", reason=str(problem)), registration)
        if not registration.is_gate:
            return False
        # As a gate does that forgets its ``return``.
        forgot = f"it returned {answer!r}; a gate must return a HookResult, such as HookResult() to let the event pass"
        return self._failed(registration, ContractError(forgot, module=registration.module, clause="H3"))

    def _add(self, result: HookResult, registration: Registration) -> bool:
        if self._verdict is None:
            self._verdict = Verdict(self.event, self.payload, self._owned)
        verdict, name, before = self._verdict, registration.name, self.payload
        if self._is_again and result.action != "deny":
            if not was_modified(result) or _has_same_input(before, {**before, **(result.data or {})}):
                verdict.ask(result, name, registration.seq)  # the rest of what it returns is known
                return False
            result = HookResult(action="deny", reason=f"hook {name!r} and a later one change the input in turns")
        denied = verdict.add(result, name, is_partial=registration.fields is not None, key=registration.seq)
        self.payload = verdict.payload
        if self.event == TOOL_PRE and self.payload is not before and not _has_same_input(before, self.payload):
            self._changed_by = registration
        return denied

    def _failed(self, registration: Registration, error: Exception) -> bool:
        """A handler raised, was cut off or, as a gate, gave no answer; True when that denies."""
        self.failures.append((registration, error))
        outcome = "denied, because it is a gate" if registration.is_gate else "skipped"
        if isinstance(error, DeadlinePassed):
            where = error.where or "no await of its own"
            logger.error(
                "%s overran its deadline and was cancelled (%s, waiting at %s): %s", registration, error, where, outcome
            )
        else:
            logger.error("%s failed with %s: %s", registration, failure_words(error), outcome, exc_info=error)
        if not registration.is_gate:
            return False
        reason = f"gate {registration.name!r} failed: {failure_words(error)}"
        return self._add(HookResult(action="deny", reason=reason), registration)


async def collect(
    event: str,
    payload: dict[str, Any],
    handlers: tuple[Registration, ...],
    timeout: float,
    watch: Watchdog | None = None,
) -> list[dict[str, Any]]:
    """Call all handlers at once, with one deadline, and return the data of their results in handler order."""
    answers: list[Any] = [None] * len(handlers)
    until = current_time() + timeout

    async def ask(index: int, registration: Registration) -> None:
        if not registration.live:  # unregistered by a handler that was faster
            return
        try:
            answer = call_foreign(registration.handler, event, registration.copy_of(payload))
            if isawaitable(answer):
                answer = await run_bounded(answer, until - current_time(), registration, watch)
            answers[index] = answer
        except DeadlinePassed:
            logger.warning("%s gave no answer within %g s: skipped", registration, timeout)
        except Exception as exc:  # handlers are foreign code; what is not theirs has passed already
            logger.error("%s failed with %s: skipped", registration, failure_words(exc), exc_info=exc)

    async with anyio.create_task_group() as group:
        for index, registration in enumerate(handlers):
            group.start_soon(ask, index, registration, name=str(registration))
    collected: list[dict[str, Any]] = []
    for registration, answer in zip(handlers, answers, strict=True):
        try:
            result = parse_answer(answer)
            if result is not None and result.data is not None:
                collected.append(copy_json(result.data))
        except (InvalidAnswer, ModelError) as problem:  # the latter for data that contains itself
            _log_invalid(registration, answer, problem, "skipped")
    return collected


def _has_same_input(before: Any, after: Any) -> bool:
    return not isinstance(before, dict) or is_same_json(before.get("tool_input"), after.get("tool_input"))


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def _log_invalid(registration: Registration, answer: Any, problem: Exception, outcome: str) -> ContractError:
    """Log an answer that could not be understood; returns the same as an error."""
    found = f"returned {_shown(answer)}; expected a HookResult, a dict with its keys or None"
    if str(problem) != INVALID_RESPONSE:
        found += f" ({problem})"
    logger.warning("%s %s: %s", registration, found, outcome)
    return ContractError(found, module=registration.module, clause="H3")


def _shown(answer: Any) -> str:
    """What a handler returned, shortened and without secrets, even if its own ``__repr__`` fails."""
    kind = type(answer).__name__
    try:
        text = redact_text(repr(answer)[:_MAX_SEARCHED])
    except Exception as broken:  # noqa: BLE001 — foreign code
        return f"the {kind} (it cannot be shown: {type(broken).__name__})"
    return f"the {kind} {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '…'}"
