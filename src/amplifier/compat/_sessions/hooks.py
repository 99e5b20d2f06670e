"""The hook registry in its published form: handlers get JSON payloads, and a modification comes back as ``continue``.

The published kernel writes every payload as JSON and reads it back, so handlers never get an object of the emitter: a `Usage`
arrives as its text, a tuple as a list, keys in alphabetical order. Published loops and loggers rely on that. Registration, order,
deadlines, merging and the containment of failing handlers are the native registry's.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import re
from typing import Any, ClassVar, Final

from amplifier.kernel import HookRegistry as KernelHookRegistry
from amplifier.models import HookResult

_CORRELATED: Final = frozenset({"llm:request", "llm:response", "provider:error", "provider:retry", "provider:throttle"})
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def of_native(name: str, doc: str) -> Any:
    """An attribute that is the native object's; on the class, so that mocks made after it have it."""
    return property(lambda self: getattr(self._native, name), doc=doc)


def method_of_native(kind: type, name: str, doc: str) -> Any:
    """A method that is the native object's, with the signature that it has in that class."""

    @functools.wraps(getattr(kind, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._native, name)(*args, **kwargs)

    method.__doc__ = doc
    return method


class HookRegistry:
    """Handlers by event, as ``amplifier_core.HookRegistry``."""

    SESSION_START: ClassVar[str] = "session:start"
    SESSION_END: ClassVar[str] = "session:end"
    PROMPT_SUBMIT: ClassVar[str] = "prompt:submit"
    TOOL_PRE: ClassVar[str] = "tool:pre"
    TOOL_POST: ClassVar[str] = "tool:post"
    CONTEXT_PRE_COMPACT: ClassVar[str] = "context:pre_compact"
    ORCHESTRATOR_COMPLETE: ClassVar[str] = "orchestrator:complete"
    USER_NOTIFICATION: ClassVar[str] = "user:notification"

    def __init__(self) -> None:
        self._native: Any = KernelHookRegistry()

    @classmethod
    def over(cls, native: Any) -> HookRegistry:
        """The published form of a native registry, or of a module's view of one."""
        made = cls.__new__(cls)
        made._native = native
        return made

    def __repr__(self) -> str:
        return repr(self._native)

    def __getattr__(self, name: str) -> Any:
        if name == "_native":  # an instance that is being copied
            raise AttributeError(name)
        return getattr(self._native, name)

    def register(self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any) -> Any:
        """Add a handler; returns a function that removes it. The options are those of `amplifier.HookRegistry.register`."""
        return self._native.register(event, _receiving(handler), priority, name, **options)

    def on(self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any) -> Any:
        """Add a handler; the same as `register`."""
        return self.register(event, handler, priority, name, **options)

    unregister: Any = method_of_native(KernelHookRegistry, "unregister", "Remove the newest handler of that name.")
    list_handlers: Any = method_of_native(KernelHookRegistry, "list_handlers", "The names of handlers by event.")
    set_default_fields: Any = method_of_native(
        KernelHookRegistry, "set_default_fields", "Replace the fields that every payload starts with."
    )

    async def emit(self, event: str, data: Any) -> HookResult:
        """Call every handler of ``event`` and merge their results.

        Raises:
            RuntimeError: The payload cannot be written as JSON.
            TypeError: A key of the payload is neither text nor a scalar.
            ValueError: The payload contains itself.
        """
        payload = json_payload(data)
        if event in _CORRELATED:
            payload = _with_request_id(event, payload)
        return published_result(await self._native.emit(event, payload))

    async def emit_and_collect(self, event: str, data: Any, timeout: float = 1.0) -> Any:
        """Call the handlers of ``event`` and return the data of their results; those that fail or are late are left out."""
        return await self._native.emit_and_collect(event, json_payload(data), timeout)


def published_result(result: HookResult) -> HookResult:
    """A merged result as published code expects it: a modification is a ``continue`` with the new payload."""
    if result.action != "modify":
        return result
    published = copy.copy(result)
    published.action = "continue"
    return published


def _receiving(handler: Any) -> Any:
    """A handler whose payloads are JSON, whoever emits them; what is not callable is the registry's to refuse."""
    if not callable(handler):
        return handler

    @functools.wraps(handler, updated=())
    def receive(event: str, data: dict[str, Any]) -> Any:
        return handler(event, json_payload(data))

    return receive


def _with_request_id(event: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Stamp the events of one call of a language model with one id; the mirror records the current call."""
    correlation = importlib.import_module("amplifier_core.correlation")
    field = correlation.REQUEST_ID_FIELD
    given = payload.get(field)
    request_id = correlation.resolve_request_id(event, given if isinstance(given, str) and given else None)
    return payload if request_id is None else {**payload, field: request_id}


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────


def json_payload(data: Any) -> dict[str, Any]:
    """A copy of a payload made of JSON values only; empty for what is no object.

    Raises:
        TypeError: A key is neither text nor a scalar.
        ValueError: The payload contains itself.
        RuntimeError: It holds what JSON cannot represent: NaN, an infinity, a lone surrogate.
    """
    dump = None if isinstance(data, dict) else getattr(data, "model_dump", None)
    text = json.dumps(data if dump is None else dump(), default=str)
    shaped = json.loads(text, object_pairs_hook=_sorted, parse_int=_integer, parse_constant=_refuse)
    return shaped if isinstance(shaped, dict) else {}


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, value in pairs:
        _check_text(key)
        _check_text(value)
        if type(value) is list:
            for item in value:
                _check_text(item)
    return dict(sorted(pairs))


def _check_text(value: Any) -> None:
    if type(value) is str and not value.isascii() and (found := _LONE_SURROGATE.search(value)):
        raise RuntimeError(f"Invalid JSON: lone surrogate {found[0]!r} in a text of the payload")


def _integer(digits: str) -> int | float:
    value = int(digits)
    return value if _SMALLEST <= value <= _LARGEST else float(value)


def _refuse(constant: str) -> Any:
    raise RuntimeError(f"Invalid JSON: {constant} cannot be part of an event's payload")
