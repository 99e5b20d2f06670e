"""The published session, coordinator and hook registry: façades over the native ones, whose behaviour they have.

- The session has the published errors.
- What the coordinator does not name, free attributes included, is the native coordinator's. Its constructor's arguments are consumed in
  ``__new__``, because published subclasses override that and define any ``__init__`` they like.
- Handlers of the registry get JSON payloads, and a modification comes back as ``continue``. The published kernel writes every payload as JSON
  and reads it back, so handlers never get an object of the emitter: a `Usage` arrives as its text, a tuple as a list, keys in alphabetical
  order. Published loops and loggers rely on that. Registration, order, deadlines, merging and the containment of failing handlers are
  the native registry's.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import logging
import re
import weakref
from inspect import isawaitable
from types import TracebackType
from typing import Any, ClassVar, Final, NoReturn, Self

from amplifier.errors import (
    ContainedError,
    ExecutionCancelled,
    ExecutionDenied,
    SessionBusyError,
    SessionStateError,
)
from amplifier.kernel import AmplifierSession as KernelSession
from amplifier.kernel import HookRegistry as KernelHookRegistry
from amplifier.kernel import ModuleCoordinator as KernelCoordinator
from amplifier.loading import LoadedModule
from amplifier.loading import ModuleLoader as NativeLoader
from amplifier.models import HookResult

from ._adapting import adapt_mounted, published_view

logger = logging.getLogger("amplifier_core.session")

_CORRELATED: Final = frozenset(
    {"llm:request", "llm:response", "provider:error", "provider:retry", "provider:throttle"}
)
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_OWN = frozenset({"_hooks", "_native"})
"""Attributes of the coordinator's façade itself."""


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


# ── the hook registry ─────────────────────────────────────────────────────────────────────────────


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

    def register(
        self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any
    ) -> Any:
        """Add a handler; returns a function that removes it. The options are those of `amplifier.HookRegistry.register`."""
        return self._native.register(event, _receiving(handler), priority, name, **options)

    def on(
        self, event: str, handler: Any, priority: int = 0, name: str | None = None, **options: Any
    ) -> Any:
        """Add a handler; the same as `register`."""
        return self.register(event, handler, priority, name, **options)

    unregister: Any = method_of_native(
        KernelHookRegistry, "unregister", "Remove the newest handler of that name."
    )
    list_handlers: Any = method_of_native(
        KernelHookRegistry, "list_handlers", "The names of handlers by event."
    )
    set_default_fields: Any = method_of_native(
        KernelHookRegistry,
        "set_default_fields",
        "Replace the fields that every payload starts with.",
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
    request_id = correlation.resolve_request_id(
        event, given if isinstance(given, str) and given else None
    )
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


# ── the coordinator ───────────────────────────────────────────────────────────────────────────────


class ModuleCoordinator:
    """The modules of one session, as ``amplifier_core.ModuleCoordinator``."""

    _native: Any
    _hooks: HookRegistry

    def __new__(
        cls, session: Any = None, approval_system: Any = None, display_system: Any = None, **_: Any
    ) -> Self:
        """Build the whole object; a subclass hands its arguments on to here.

        No session of ours stands behind it, so payloads have the ids that their emitters write, as published.
        """
        native: Any = KernelCoordinator(session, approval_system, display_system)
        native.hooks._identity.clear()
        self = cls.over(native)
        self.mount_points["hooks"] = self._hooks
        return self

    @classmethod
    def over(cls, native: Any) -> Self:
        """The published form of a native coordinator."""
        self = object.__new__(cls)
        self._native = native
        self._hooks = HookRegistry.over(native.hooks)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: ``__new__`` builds the object."""

    def __repr__(self) -> str:
        return repr(self._native)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # an instance that is being copied
            raise AttributeError(name)
        return getattr(self._native, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
            return
        if name == "loader" and value is not None and not isinstance(value, NativeLoader):
            value = _ProgramsLoader(value)
        setattr(self._native, name, value)
        # A suite may replace a method, and read it afterwards.
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._native, name)
        vars(self).pop(name, None)

    # ── what a module may read ──

    session_id: Any = of_native("session_id", "The session's id.")
    parent_id: Any = of_native("parent_id", "The parent session's id, in a child.")
    config: Any = of_native("config", "The mount plan, the same object that was given.")
    cancellation: Any = of_native("cancellation", "The session's cancellation token.")
    mount_points: Any = of_native("mount_points", "What is mounted where, live.")
    channels: Any = of_native("channels", "Contributors by channel.")
    approval_system: Any = of_native("approval_system", "Answers approval requests of hooks.")
    display_system: Any = of_native("display_system", "Shows messages of hooks.")
    session_state: Any = of_native("session_state", "A dict for modules to share values.")
    injection_budget_per_turn: Any = of_native(
        "injection_budget_per_turn", "Tokens per turn before a warning, or None."
    )
    injection_size_limit: Any = of_native(
        "injection_size_limit", "Characters one injection may have, or None."
    )

    @property
    def session(self) -> Any:
        """The session; None for a coordinator of its own."""
        published = getattr(self._native, "published_session", None)
        session = None if published is None else published()
        if session is None:
            return self._native.session
        # With a border, the session is on trio, and this code on an asyncio island.
        border = getattr(self._native, "_island_border", None)
        return session if border is None else border.for_island(session)

    @property
    def loader(self) -> Any:
        """What finds the modules of the session."""
        loader = self._native.loader
        return loader.loader if isinstance(loader, _ProgramsLoader) else loader

    @property
    def hooks(self) -> HookRegistry:
        """The hook registry."""
        return self._hooks

    to_dict: Any = method_of_native(KernelCoordinator, "to_dict", "What is mounted, by name.")

    # ── mounting and registering ──

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Put a module at a mount point. It is there when the call returns; awaiting the result is optional."""
        adapt_mounted(name if mount_point == "session" else mount_point, module, name)
        return self._native.mount(mount_point, module, name)

    unmount: Any = method_of_native(
        KernelCoordinator, "unmount", "Take something away; awaiting the result is optional."
    )

    def get(self, mount_point: str, name: str | None = None) -> Any:
        """The module at a single mount point, the dict or one module of a named one; None if there is none."""
        return self._hooks if mount_point == "hooks" else self._native.get(mount_point, name)

    register_capability: Any = method_of_native(
        KernelCoordinator, "register_capability", "Offer a value to whoever asks for ``name``."
    )
    get_capability: Any = method_of_native(
        KernelCoordinator, "get_capability", "The value registered under ``name``, or None."
    )
    register_contributor: Any = method_of_native(
        KernelCoordinator, "register_contributor", "Have ``callback()`` called on each collection."
    )

    async def collect_contributions(self, channel: str) -> Any:
        """What the contributors of ``channel`` return, in order, without None."""
        return await self._native.collect_contributions(channel)

    def register_cleanup(self, cleanup_fn: Any) -> None:
        """Have ``cleanup_fn()`` called when the session closes; what is not callable is ignored."""
        if callable(cleanup_fn):
            self._native.register_cleanup(cleanup_fn)

    async def cleanup(self) -> None:
        """Run all registered cleanups, the last one first; each runs once."""
        await self._native.cleanup()

    # ── turns ──

    async def process_hook_result(
        self, result: Any, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        """Carry out the result of hooks: approvals, injections, messages.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``; nothing was stored.
        """
        processed = await self._native.process_hook_result(result, event, hook_name)
        if result.action == "ask_user" and processed.action in ("continue", "deny"):
            # The published kernel's answer to a question carries no payload.
            return HookResult(action=processed.action, reason=processed.reason)
        return processed if result.action == "modify" else published_result(processed)

    reset_turn: Any = method_of_native(
        KernelCoordinator, "reset_turn", "Start counting injections of a new turn."
    )

    async def request_cancel(self, immediate: bool = False) -> None:
        """Request that the running turn stops."""
        self._native.request_cancel(immediate)


class _ProgramsLoader:
    """A loader of a program's own: the mount functions that it gives get the published coordinator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    async def load(self, module_id: str, config: Any = None, source_hint: Any = None) -> Any:
        """Load a module."""
        mount = self.loader.load(module_id, config, source_hint=source_hint)
        if isawaitable(mount):
            mount = await mount
        return (
            mount if isinstance(mount, LoadedModule) else lambda view: mount(published_view(view))
        )


# ── the session ───────────────────────────────────────────────────────────────────────────────────


class AmplifierSession:
    """One agent, as ``amplifier_core.AmplifierSession``.

    Args:
        config: The mount plan; kept as it is, later changes are seen by `initialize`.
        loader: Ignored, as published; set ``coordinator.loader`` instead.
        session_id: Generated if absent.
        parent_id: The session this one was forked from.
        approval_system: Answers approval requests of hooks.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.

    Raises:
        ValueError: The plan or an id is wrong.
        TypeError: The plan is not a dict.
    """

    def __init__(
        self,
        config: dict[str, Any],
        loader: Any = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        approval_system: Any = None,
        display_system: Any = None,
        is_resumed: bool = False,
    ) -> None:
        _check_plan(config)
        if loader is not None:
            logger.warning(
                "loader parameter passed to AmplifierSession but is not used; set session.coordinator.loader"
            )
        self._native = KernelSession(
            config, None, session_id, parent_id, approval_system, display_system, bool(is_resumed)
        )
        self._is_in_block = False
        native: Any = self._native.coordinator
        native.published_session = weakref.ref(self)
        self._coordinator = ModuleCoordinator.over(native)
        native.mount_points["hooks"] = self._coordinator.hooks

    def __repr__(self) -> str:
        return f"<amplifier_core.AmplifierSession {self.session_id!r}{' open' if self.initialized else ''}>"

    session_id: Any = of_native("session_id", "The session's id.")
    parent_id: Any = of_native("parent_id", "The parent session's id, in a child.")
    config: Any = of_native("config", "The mount plan, the same object that was given.")
    is_resumed: Any = of_native(
        "is_resumed", "Whether the first turn announces ``session:resume``."
    )
    initialized: Any = of_native("initialized", "Whether the session is open.")

    @property
    def coordinator(self) -> ModuleCoordinator:
        """The coordinator of the session."""
        return self._coordinator

    async def initialize(self) -> None:
        """Load and mount the plan's modules; does nothing when that has happened.

        Raises:
            RuntimeError: Something fatal went wrong; see the cause. What was mounted is cleaned up.
        """
        try:
            await self._native.initialize()
        except Exception as exc:  # noqa: BLE001 — everything that goes wrong is one error there
            _raise_published("Session initialization failed", exc)

    async def execute(self, prompt: str) -> str:
        """Run one turn.

        Raises:
            RuntimeError: The session is not open, or the turn failed; the cause is the orchestrator's own exception.
            SessionBusyError: Another turn is running.
        """
        if not self.initialized:
            raise RuntimeError("Session not initialized. Call initialize() first.")
        native: Any = self._native.coordinator
        native.published_answer = None
        try:
            if not isinstance(prompt, str):
                raise TypeError(
                    f"a prompt must be a str, got {type(prompt).__name__}: {prompt!r:.80}"
                )
            return await self._native.execute(prompt)
        except (ExecutionCancelled, ExecutionDenied) as exc:
            answer = native.published_answer
            # The loop has answered the request, or the denial.
            if isinstance(answer, str):
                return answer
            # A published loop answers a stop this way, so that its program stores the conversation.
            if isinstance(exc, ExecutionCancelled) and native.cancellation.is_immediate:
                return ""
            _raise_published("Execution failed", exc)
        except Exception as exc:  # noqa: BLE001 — everything that goes wrong is one error there
            _raise_published("Execution failed", exc)

    async def cleanup(self) -> None:
        """Close the session: ``session:end`` while hooks are live, then all cleanups in reverse.

        Raises:
            SessionStateError: Called from inside one of the session's own turns.
        """
        await self._native.cleanup()

    async def __aenter__(self) -> Self:
        if not self.initialized:
            try:
                await self._native.__aenter__()
            except Exception as exc:  # noqa: BLE001 — everything that goes wrong is one error there
                _raise_published("Session initialization failed", exc)
            self._is_in_block = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if not self._is_in_block:
            await self.cleanup()
            return None
        self._is_in_block = False
        return await self._native.__aexit__(exc_type, exc, traceback)


def _check_plan(config: Any) -> None:
    """Refuse, in the published words, what is no plan at all; the native session checks the rest."""
    if not isinstance(config, dict):
        raise TypeError(f"config must be a dict, got {config!r}")
    if not config:
        raise ValueError("Configuration is required")
    section = config.get("session")
    if "session" in config and not isinstance(section, dict):
        raise TypeError(f"config['session'] must be a dict, got {section!r}")
    for name in ("orchestrator", "context"):
        if section is None or section.get(name) is None:
            raise ValueError(f"Configuration must specify session.{name}")


def _raise_published(what: str, exc: Exception) -> NoReturn:
    """Raise the error that published callers expect, with the original as its cause; an exit leaves as it is."""
    if isinstance(exc, SessionBusyError | SessionStateError):
        raise exc
    if isinstance(exc, ContainedError) and isinstance(exc.__cause__, SystemExit):
        raise exc.__cause__
    raise RuntimeError(f"{what}: {type(exc).__name__}: {exc}") from exc
