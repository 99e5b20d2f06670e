"""The published session, coordinator and hook registry, as façades over the native ones."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import logging
import re
import weakref
from collections.abc import Awaitable, Callable
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
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_OWN = frozenset({"_hooks", "_native"})
"""Attributes of the coordinator's façade itself."""


def of_native(name: str, doc: str) -> property:
    """Return a property that reads an attribute of the native object.

    It is defined on the class, so that mocks of the class have it.
    """
    return property(lambda self: getattr(self._native, name), doc=doc)


def method_of_native(kind: type, name: str, doc: str) -> Callable[..., Any]:
    """Return a method that calls the native object's, with its signature in ``kind``."""

    @functools.wraps(getattr(kind, name))
    def method(self: Any, *args: object, **kwargs: object) -> object:
        return getattr(self._native, name)(*args, **kwargs)

    method.__doc__ = doc
    return method


# ── the hook registry ─────────────────────────────────────────────────────────────────────────────
# The published kernel writes every payload as JSON and reads it back, so handlers never receive an
# object of the emitter. A `Usage` arrives as its text, a tuple as a list, keys in alphabetical
# order. Published loops and loggers rely on that. A modification comes back as ``continue``.
# Registration, order, deadlines, merging and the containment of failing handlers are native.


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
        """Return the published form of a native registry, or of a module's view of one."""
        registry = cls.__new__(cls)
        registry._native = native
        return registry

    def __repr__(self) -> str:
        return repr(self._native)

    def __getattr__(self, name: str) -> Any:
        # An instance that is being copied has no attributes yet.
        if name == "_native":
            raise AttributeError(name)
        return getattr(self._native, name)

    def register(
        self,
        event: str,
        handler: object,
        priority: int = 0,
        name: str | None = None,
        **options: object,
    ) -> Callable[[], None]:
        """Add a handler and return a function that removes it.

        The options are those of `amplifier.HookRegistry.register`.
        """
        unregister: Callable[[], None] = self._native.register(
            event, _receiving(handler), priority, name, **options
        )
        return unregister

    def on(
        self,
        event: str,
        handler: object,
        priority: int = 0,
        name: str | None = None,
        **options: object,
    ) -> Callable[[], None]:
        """Add a handler, like `register`."""
        return self.register(event, handler, priority, name, **options)

    unregister: Callable[..., Any] = method_of_native(
        KernelHookRegistry, "unregister", "Remove the newest handler of that name."
    )
    list_handlers: Callable[..., Any] = method_of_native(
        KernelHookRegistry, "list_handlers", "Return the names of handlers by event."
    )
    set_default_fields: Callable[..., Any] = method_of_native(
        KernelHookRegistry,
        "set_default_fields",
        "Replace the fields with which every payload starts.",
    )

    async def emit(self, event: str, data: object) -> HookResult:
        """Call every handler of ``event`` and merge their results.

        Raises:
            RuntimeError: The payload can't be written as JSON.
            TypeError: A key of the payload is neither text nor a scalar.
            ValueError: The payload contains itself.
        """
        payload = json_payload(data)
        if event in _CORRELATED:
            payload = _with_request_id(event, payload)
        return published_result(await self._native.emit(event, payload))

    async def emit_and_collect(
        self, event: str, data: object, timeout: float = 1.0
    ) -> list[dict[str, Any]]:
        """Call the handlers of ``event`` and return the data of their results.

        Handlers that fail or are late are left out.
        """
        results: list[dict[str, Any]] = await self._native.emit_and_collect(
            event, json_payload(data), timeout
        )
        return results


def published_result(result: HookResult) -> HookResult:
    """Return a merged result in the published form.

    A modification is a ``continue`` with the new payload.
    """
    if result.action != "modify":
        return result
    published = copy.copy(result)
    published.action = "continue"
    return published


def _receiving(handler: object) -> object:
    """Wrap a handler so that its payloads are JSON, whatever emits them."""
    # The registry refuses such a handler.
    if not callable(handler):
        return handler

    @functools.wraps(handler, updated=())
    def receive(event: str, data: object) -> object:
        return handler(event, json_payload(data))

    return receive


def _with_request_id(event: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload with the id that all events of one model call have."""
    # The mirror records the current call.
    correlation = importlib.import_module("amplifier_core.correlation")
    field = correlation.REQUEST_ID_FIELD
    present = payload.get(field)
    request_id = correlation.resolve_request_id(
        event, present if isinstance(present, str) and present else None
    )
    return payload if request_id is None else {**payload, field: request_id}


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────


def json_payload(data: object) -> dict[str, Any]:
    """Return a copy of a payload made of JSON values only, or {} if it isn't an object.

    Raises:
        TypeError: A key is neither text nor a scalar.
        ValueError: The payload contains itself.
        RuntimeError: It holds NaN, an infinity or a lone surrogate, for which JSON has no form.
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


def _check_text(value: object) -> None:
    if type(value) is str and not value.isascii() and (match := _LONE_SURROGATE.search(value)):
        raise RuntimeError(f"Invalid JSON: lone surrogate {match[0]!r} in a text of the payload")


def _integer(digits: str) -> int | float:
    value = int(digits)
    return value if _MIN_INTEGER <= value <= _MAX_INTEGER else float(value)


def _refuse(constant: str) -> NoReturn:
    raise RuntimeError(f"Invalid JSON: {constant} cannot be part of an event's payload")


# ── the coordinator ───────────────────────────────────────────────────────────────────────────────
# Members that the façade doesn't define, free attributes included, are the native coordinator's.
# ``__new__`` consumes the arguments of the constructor, because published subclasses override it
# and define any ``__init__`` they like.


class ModuleCoordinator:
    """The modules of one session, as ``amplifier_core.ModuleCoordinator``."""

    _native: Any
    _hooks: HookRegistry

    def __new__(
        cls,
        session: Any = None,
        approval_system: Any = None,
        display_system: Any = None,
        **_: object,
    ) -> Self:
        """Build the whole object. A subclass passes its arguments on.

        The object has no native session, so payloads keep the ids that their emitters write, as
        published.
        """
        native: Any = KernelCoordinator(session, approval_system, display_system)
        native.hooks._identity.clear()
        self = cls.over(native)
        self.mount_points["hooks"] = self._hooks
        return self

    @classmethod
    def over(cls, native: Any) -> Self:
        """Return the published form of a native coordinator."""
        self = object.__new__(cls)
        self._native = native
        self._hooks = HookRegistry.over(native.hooks)
        return self

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Do nothing, because ``__new__`` builds the object."""

    def __repr__(self) -> str:
        return repr(self._native)

    def __getattr__(self, name: str) -> Any:
        # An instance that is being copied has no attributes yet.
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._native, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
            return
        if name == "loader" and value is not None and not isinstance(value, NativeLoader):
            value = _ForeignLoader(value)
        setattr(self._native, name, value)
        # A suite may replace a method and read it afterwards.
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._native, name)
        vars(self).pop(name, None)

    # ── attributes for modules ──

    session_id: property = of_native("session_id", "The session's id.")
    parent_id: property = of_native("parent_id", "The parent session's id, in a child.")
    config: property = of_native("config", "The mount plan, the same object as the session's.")
    cancellation: property = of_native("cancellation", "The session's cancellation token.")
    mount_points: property = of_native("mount_points", "The mounted modules by mount point, live.")
    channels: property = of_native("channels", "Contributors by channel.")
    approval_system: property = of_native("approval_system", "Decides approval requests of hooks.")
    display_system: property = of_native("display_system", "Shows messages of hooks.")
    session_state: property = of_native("session_state", "A dict for modules to share values.")
    injection_budget_per_turn: property = of_native(
        "injection_budget_per_turn", "Tokens per turn before a warning, or None."
    )
    injection_size_limit: property = of_native(
        "injection_size_limit", "Maximum characters of one injection, or None."
    )

    @property
    def session(self) -> Any:
        """The session, or None for a coordinator without one."""
        published = getattr(self._native, "published_session", None)
        session = None if published is None else published()
        if session is None:
            return self._native.session
        # On an asyncio island, the native coordinator is an adapter, and the session is on trio.
        side = getattr(self._native, "_island_side", None)
        return session if side is None else side.adapt(session)

    @property
    def loader(self) -> Any:
        """The module loader of the session."""
        loader = self._native.loader
        return loader.loader if isinstance(loader, _ForeignLoader) else loader

    @property
    def hooks(self) -> HookRegistry:
        """The hook registry."""
        return self._hooks

    to_dict: Callable[..., Any] = method_of_native(
        KernelCoordinator, "to_dict", "Return the mounted modules by name."
    )

    # ── mounting and registering ──

    def mount(self, mount_point: str, module: object, name: str | None = None) -> Awaitable[None]:
        """Mount a module immediately. Awaiting the result is optional."""
        adapt_mounted(name if mount_point == "session" else mount_point, module, name)
        mounted: Awaitable[None] = self._native.mount(mount_point, module, name)
        return mounted

    unmount: Callable[..., Any] = method_of_native(
        KernelCoordinator, "unmount", "Unmount a module at once. Awaiting the result is optional."
    )

    def get(self, mount_point: str, name: str | None = None) -> Any:
        """Return the module at a mount point, or None if there is none.

        At a mount point with named modules, return the dict, or one of them.
        """
        return self._hooks if mount_point == "hooks" else self._native.get(mount_point, name)

    register_capability: Callable[..., Any] = method_of_native(
        KernelCoordinator, "register_capability", "Offer a value under ``name``."
    )
    get_capability: Callable[..., Any] = method_of_native(
        KernelCoordinator, "get_capability", "Return the value registered under ``name``, or None."
    )
    register_contributor: Callable[..., Any] = method_of_native(
        KernelCoordinator, "register_contributor", "Call ``callback()`` on each collection."
    )

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return the results of the contributors of ``channel``, in order, without None."""
        contributions: list[Any] = await self._native.collect_contributions(channel)
        return contributions

    def register_cleanup(self, cleanup_fn: object) -> None:
        """Call ``cleanup_fn()`` when the session closes, if it is callable."""
        if callable(cleanup_fn):
            self._native.register_cleanup(cleanup_fn)

    async def cleanup(self) -> None:
        """Run all registered cleanups once, in reverse order of registration."""
        await self._native.cleanup()

    # ── turns ──

    async def process_hook_result(
        self, result: HookResult, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        """Carry out the result of hooks: approvals, injections, messages.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``. Nothing was
                stored.
        """
        processed = await self._native.process_hook_result(result, event, hook_name)
        if result.action == "ask_user" and processed.action in ("continue", "deny"):
            # In the published kernel the result of a question has no payload.
            return HookResult(action=processed.action, reason=processed.reason)
        return processed if result.action == "modify" else published_result(processed)

    reset_turn: Callable[..., Any] = method_of_native(
        KernelCoordinator, "reset_turn", "Start counting injections of a new turn."
    )

    async def request_cancel(self, immediate: bool = False) -> None:
        """Ask the running turn to stop."""
        self._native.request_cancel(immediate)


class _ForeignLoader:
    """A program's loader. Its mount functions get the published coordinator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    async def load(
        self, module_id: str, config: object = None, source_hint: object = None
    ) -> LoadedModule | Callable[[object], object]:
        """Load a module."""
        mount = self.loader.load(module_id, config, source_hint=source_hint)
        if isawaitable(mount):
            mount = await mount
        if isinstance(mount, LoadedModule):
            return mount
        return lambda view: mount(published_view(view))


# ── the session ───────────────────────────────────────────────────────────────────────────────────


class AmplifierSession:
    """One agent, as ``amplifier_core.AmplifierSession``.

    Args:
        config: The mount plan. It isn't copied, so `initialize` sees later changes.
        loader: Ignored, as in the published kernel. Set ``coordinator.loader`` instead.
        session_id: The id, which is generated if absent.
        parent_id: The id of the session from which this one was forked.
        approval_system: Decides approval requests of hooks.
        display_system: Shows messages of hooks.
        is_resumed: True announces ``session:resume`` instead of ``session:start``.

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
                "AmplifierSession ignores its parameter loader; set session.coordinator.loader"
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
        state = " open" if self.initialized else ""
        return f"<amplifier_core.AmplifierSession {self.session_id!r}{state}>"

    session_id: property = of_native("session_id", "The session's id.")
    parent_id: property = of_native("parent_id", "The parent session's id, in a child.")
    config: property = of_native("config", "The mount plan, the same object that was passed in.")
    is_resumed: property = of_native(
        "is_resumed", "True if the first turn announces ``session:resume``."
    )
    initialized: property = of_native("initialized", "True while the session is open.")

    @property
    def coordinator(self) -> ModuleCoordinator:
        """The coordinator of the session."""
        return self._coordinator

    async def initialize(self) -> None:
        """Load and mount the plan's modules. A second call does nothing.

        Raises:
            RuntimeError: The opening failed, see the cause. The mounted modules were cleaned up.
        """
        try:
            await self._native.initialize()
        # The published session raises the same error for every failure.
        except Exception as exc:  # noqa: BLE001
            _raise_published("Session initialization failed", exc)

    async def execute(self, prompt: str) -> str:
        """Run one turn.

        Raises:
            RuntimeError: The session isn't open, or the turn failed. The cause is the exception of
                the orchestrator.
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
            # The loop has returned a text in spite of the request or the denial.
            if isinstance(answer, str):
                return answer
            # A published loop returns this when it is stopped, and its program stores the
            # conversation.
            if isinstance(exc, ExecutionCancelled) and native.cancellation.is_immediate:
                return ""
            _raise_published("Execution failed", exc)
        # The published session raises the same error for every failure.
        except Exception as exc:  # noqa: BLE001
            _raise_published("Execution failed", exc)

    async def cleanup(self) -> None:
        """Close the session: emit ``session:end`` to live hooks, then run all cleanups in reverse.

        Raises:
            SessionStateError: Called from inside one of the session's own turns.
        """
        await self._native.cleanup()

    async def __aenter__(self) -> Self:
        if not self.initialized:
            try:
                await self._native.__aenter__()
            # The published session raises the same error for every failure.
            except Exception as exc:  # noqa: BLE001
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


def _check_plan(config: object) -> None:
    """Raise the published errors for a wrong plan. The native session checks the rest."""
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


def _raise_published(problem: str, exc: Exception) -> NoReturn:
    """Raise the error that published callers expect, with the original as its cause.

    An exit propagates unchanged.
    """
    if isinstance(exc, SessionBusyError | SessionStateError):
        raise exc
    if isinstance(exc, ContainedError) and isinstance(exc.__cause__, SystemExit):
        raise exc.__cause__
    raise RuntimeError(f"{problem}: {type(exc).__name__}: {exc}") from exc
