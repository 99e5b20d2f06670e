"""The hook registry in its published form: payloads are JSON, a modification comes back as ``continue``.

Registration, order, deadlines and the containment of failing handlers are the kernel's own; the form of a payload and the
merging of results are the published kernel's.
"""

from __future__ import annotations

import importlib
import logging
import math
from copy import copy
from inspect import isawaitable
from typing import Any

from amplifier.events import TERMINAL_EVENTS
from amplifier.kernel import HookRegistry as KernelHookRegistry
from amplifier.kernel.hooks.dispatch import Dispatch, Registration, look_at_replaced_code
from amplifier.kernel.hooks.registry import _begin, _innermost
from amplifier.kernel.runtime.deadlines import DeadlinePassed
from amplifier.kernel.runtime.sections import run_section
from amplifier.kernel.runtime.timestamp import timestamp
from amplifier.models import HookResult

from .._modules.on_trio import running_module, translated
from .calls import PublishedCalls, is_exit
from .isolated_context import IsolatedHandler
from .merge import PublishedMerge, parse_answer
from .payload import json_shaped

logger = logging.getLogger("amplifier_core.hooks")

TERMINAL_SECONDS = 30.0
"""How long the handlers of a terminal event may take together. Published ones drain background work at ``session:end``."""

_CORRELATED = frozenset({"llm:request", "llm:response", "provider:error", "provider:retry", "provider:throttle"})


class RustHookRegistry(KernelHookRegistry):  # type: ignore[misc]  # final for all other code
    """Handlers by event, as ``amplifier_core.HookRegistry``."""

    _lists_empty_events = True

    def register(self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any) -> Any:
        """Add a handler; see `amplifier.HookRegistry.register`."""
        if not callable(handler):
            handler = _Uncallable(handler)
        if (module_id := running_module.get()) is not None:
            handler = translated(module_id, handler)
        return super().register(event, IsolatedHandler(handler), priority, name, **options)

    def on(self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any) -> Any:
        """Add a handler; the same as `register`."""
        return self.register(event, handler, priority, name, **options)

    def _look_at_unknown(self, event: str) -> None:
        """The published kernel does not check the names of events."""

    async def emit(self, event: str, data: Any) -> HookResult:  # type: ignore[override]  # data is not optional there
        """Call every handler of ``event`` and merge their results.

        Raises:
            RuntimeError: The payload cannot be written as JSON.
            TypeError: The event is not a str, or a key of the payload neither text nor a scalar.
            ValueError: The payload contains itself.
        """
        payload = json_shaped(data)
        if event in _CORRELATED and isinstance(payload, dict):
            payload = _with_request_id(event, payload)
        handlers = self._ready.get(event) or self._ready_for(event)
        if not handlers:
            return HookResult(action="continue", data=payload if isinstance(payload, dict) else {})
        if event in TERMINAL_EVENTS:
            return await run_section(
                self._dispatch, event, payload, handlers, True, name=f"amplifier event {event}", shield=True
            )
        return await self._dispatch(event, payload, handlers, False)

    async def emit_end(self, event: str, data: dict[str, Any]) -> None:
        """Call the handlers of a terminal event; a cancellation reaches the one that runs, and the others are not called."""
        handlers = self._ready.get(event) or self._ready_for(event)
        if handlers:
            await self._dispatch(event, json_shaped(data), handlers, True)

    async def _dispatch(
        self, event: str, given: Any, handlers: tuple[Registration, ...], is_terminal: bool
    ) -> HookResult:
        look_at_replaced_code(handlers)
        payload = given
        if isinstance(given, dict):
            payload = {**json_shaped(self._defaults), **given, "timestamp": timestamp()}
            payload = dict(sorted(payload.items()))
        limit = TERMINAL_SECONDS if is_terminal else None
        dispatch = _PublishedDispatch(event, payload, {}, self._watch, limit)
        link = _begin(event)
        token = _innermost.set(link)
        try:
            result = await dispatch.run(handlers)
        finally:
            link.is_over = True
            _innermost.reset(token)
            # Their tracebacks lead to the dispatch; one that keeps them would be a reference cycle.
            failures, dispatch.failures = dispatch.failures, None
        if failures is not None:
            try:
                await self._report(event, failures, is_terminal)
            finally:
                failures.clear()  # from Python 3.12 on, frames in a traceback keep those that called them, this one too
        return result

    async def emit_and_collect(  # type: ignore[override]  # data is not optional there
        self, event: str, data: Any, timeout: float = 1.0
    ) -> list[dict[str, Any]]:
        """Call the handlers of ``event`` one after another and return the data of their results.

        Those that fail, or do not return within ``timeout`` seconds each, are logged and left out.

        Raises:
            TypeError: The timeout is not a number.
            ValueError: It is negative, infinite or NaN.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"a timeout must be a number of seconds, got {timeout!r}")
        if not math.isfinite(timeout) or timeout < 0:
            raise ValueError(f"a timeout must be a finite number of seconds, got {timeout!r}")
        payload = json_shaped(data)
        collected: list[dict[str, Any]] = []
        calls = PublishedCalls(self._watch, passes=is_exit)
        try:
            for registration in self._ready.get(event) or self._ready_for(event):
                if not registration.live:
                    continue
                result = parse_answer(await _call(registration, event, payload, timeout, calls))
                if result is not None and result.data is not None:
                    collected.append(result.data)
        finally:
            calls.close()
        return collected


HookRegistry = RustHookRegistry
"""The published name; suites also import the other one."""


class _PublishedDispatch(Dispatch):
    """The kernel's call loop over the published way of merging."""

    __slots__ = ("_published",)

    def __init__(self, event: str, payload: Any, owned: Any, watch: Any, limit: float | None) -> None:
        super().__init__(event, payload, owned, watch, limit)
        self._series = PublishedCalls(watch, limit, passes=is_exit)
        self._published = PublishedMerge(event, payload)

    def result(self) -> HookResult:
        return self._published.result()

    def _unanswered(self, registration: Registration, answer: Any) -> bool:
        return False  # None is ``continue`` there, from every handler

    def _took(self, registration: Registration, answer: Any) -> bool:
        result = parse_answer(answer)
        return result is not None and self._add(self._completed(registration, result), registration.name)

    def _completed(self, registration: Registration, result: HookResult) -> HookResult:
        """A result whose data is the whole payload, from a handler that knows some fields of it."""
        if not registration.is_partial or result.data is None or not isinstance(self.payload, dict):
            return result
        completed = copy(result)
        completed.data = {**self.payload, **result.data}
        return completed

    def _add(self, result: HookResult, name: str, *, is_partial: bool = False) -> bool:
        if result.action == "modify" and result.data is not None:
            try:
                result = HookResult(action="modify", data=json_shaped(result.data))
            except (TypeError, ValueError, RuntimeError):
                result = HookResult(action="deny", reason="Hook handler returned invalid response")
        denied = self._published.add(result, name)
        self.payload = self._published.payload
        return denied


async def _call(registration: Registration, event: str, payload: Any, timeout: float, calls: PublishedCalls) -> Any:
    try:
        answer = registration.handler(event, json_shaped(payload))
        if isawaitable(answer):
            answer = await calls.run(answer, timeout, registration)
    except DeadlinePassed:
        logger.warning("%s gave no answer within %g s: skipped", registration, timeout)
    except Exception as exc:  # handlers are third-party code
        logger.error("%s failed with %s: skipped", registration, exc, exc_info=exc)
    except BaseException as exc:  # noqa: BLE001 — judge() raises what is not the handler's own
        logger.error("%s failed with %s: skipped", registration, calls.judge(exc))
    else:
        return answer
    return None


class _Uncallable:
    """A handler that is not callable; the published kernel fails when the event is emitted."""

    __slots__ = ("_thing",)

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __call__(self, event: str, data: Any) -> Any:
        return self._thing(event, data)


def _with_request_id(event: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Stamp the events of one call of a language model with one id; the mirror records the current call."""
    correlation = importlib.import_module("amplifier_core.correlation")
    field = correlation.REQUEST_ID_FIELD
    explicit = payload.get(field)
    given = explicit if isinstance(explicit, str) and explicit else None
    request_id = correlation.resolve_request_id(event, given)
    return {**payload, field: request_id} if request_id is not None else payload
