"""The coordinator in its published form.

Mount points, capabilities, channels and the token are the kernel's own. The hook registry is the published one (`hooks`), and
what a coordinator does with the result of hooks and at its cleanup follows the published kernel. The constructor's arguments
are consumed in ``__new__``, because published subclasses override that and define any ``__init__`` they like.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from copy import copy
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, Self

from amplifier._json import sanitize_text
from amplifier.contracts import contained_failure
from amplifier.contracts._containment import is_cancellation_type, is_real_cancellation
from amplifier.contracts._scopes import loop_clock
from amplifier.errors import ApprovalTimeoutError, DeadlineExceeded, SessionStateError, SpuriousCancellation
from amplifier.kernel import ModuleCoordinator as KernelCoordinator
from amplifier.kernel.coordinator.mounts import DONE, Done
from amplifier.kernel.hooks.injections import store
from amplifier.kernel.runtime.deadlines import DeadlinePassed, TimeBudget
from amplifier.kernel.runtime.sections import run_section
from amplifier.models import ContextInjection, HookResult

from .._modules.on_trio import running_module, translate_methods
from .calls import PublishedCalls, is_fatal, is_no_exception
from .group_owner import Owner
from .hooks import HookRegistry
from .merge import scalar_item, write_items

logger = logging.getLogger("amplifier_core.coordinator")

_ALLOWING = frozenset({"allow", "allow once", "allow always"})
_SHOWN = 200


class RustCoordinator(KernelCoordinator):
    """The modules of one session, as ``amplifier_core.ModuleCoordinator``."""

    # Each instance has its own; those of the class are for doubles that are made after it.
    loader: Any = None
    approval_system: Any = None
    display_system: Any = None
    _cleanup_fns: Any = None
    _session_state: dict[str, Any]
    _owner: Owner

    def __new__(cls, session: Any = None, approval_system: Any = None, display_system: Any = None, **_: Any) -> Self:
        """Build the whole object; a subclass hands its arguments on to here."""
        self = super().__new__(cls)
        _check_session(session)
        KernelCoordinator.__init__(self, session, approval_system, display_system)
        hooks = HookRegistry()
        hooks.belong_to(self._session_id, self._parent_id, self.watch, self.ledger)
        hooks.set_default_fields(session_id=self._session_id, parent_id=self._parent_id)
        self._hooks = hooks
        self.mounts.points["hooks"] = hooks
        self._cleanup_fns = []
        self._owner = Owner(self.hosting)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: ``__new__`` builds the object."""

    # ── attributes ──

    @property
    def mount_points(self) -> dict[str, Any]:
        """What is mounted where, live."""
        return self.mounts.points

    @mount_points.setter
    def mount_points(self, points: dict[str, Any]) -> None:
        self.mounts.points = points

    @property
    def session_state(self) -> dict[str, Any]:
        """A dict for modules to share values."""
        return self._session_state

    @session_state.setter
    def session_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict):
            raise TypeError(f"session_state must be a dict, got {type(state).__name__}")
        self._session_state = state

    def show_session(self, session: Any) -> None:
        """From now on ``coordinator.session`` is ``session``."""
        self._session = session

    _set_session = show_session

    def request_cancel(self, immediate: bool = False) -> Done:  # type: ignore[override]  # published as a coroutine
        """Request that the running turn stops; the request is made when the call returns, awaiting the result is optional."""
        super().request_cancel(immediate)
        return DONE

    # ── mounting and contributions ──

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Done:
        """Put a module at a mount point; see `amplifier.ModuleCoordinator.mount`."""
        if (module_id := running_module.get()) is not None:
            translate_methods(module_id, name if mount_point == "session" else mount_point, module)
        self.mounts.mount(mount_point, module, name, None)
        return DONE

    async def collect_contributions(self, channel: str) -> list[Any]:
        """What the contributors of ``channel`` return, in order, without None; one that raises a cancellation of its own ends it."""
        collected: list[Any] = []
        calls = PublishedCalls(self.watch, self.deadlines.collection, passes=is_fatal)
        try:
            for contributor in self.channels.get(channel, ()):
                name = contributor["name"]
                try:
                    value = contributor["callback"]()
                    if iscoroutine(value):
                        value = await calls.run(value, self.deadlines.contribution, f"contributor {name!r}")
                except BaseException as exc:  # noqa: BLE001 — third-party code; judge() raises what is not its failure
                    failure = calls.judge(exc)
                    logger.warning("Contributor '%s' on channel '%s' failed: %s", name, channel, failure)
                    if isinstance(failure, SpuriousCancellation):
                        break
                else:
                    if value is not None:
                        collected.append(value)
        finally:
            calls.close()
        return collected

    # ── hook results ──

    async def process_hook_result(self, result: Any, event: str, hook_name: str = "unknown") -> HookResult:
        """Carry out the result of hooks.

        Returns:
            ``continue`` or ``deny`` after a question, ``inject_context`` with the ephemeral items that are left,
            ``continue`` when everything was stored, and any other result as it is.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``; nothing was stored.
            TypeError: The approval system answered something else than text.
        """
        action, message = result.action, result.user_message
        processed: HookResult = result
        if action == "inject_context":
            processed = await self._injected(result, event, hook_name)
        if message and action != "ask_user":
            await self._show(result, hook_name)
        if result.suppress_output:
            logger.debug("hook %r requests to suppress output on %r", hook_name, event)
        if action == "ask_user":
            return await self._asked(result, hook_name)
        return processed

    async def _injected(self, result: Any, event: str, hook_name: str) -> HookResult:
        given: list[ContextInjection] = list(result.context_injections)
        if not given and result.context_injection:
            given = [scalar_item(result, hook_name, event)]
        items: list[ContextInjection] = []
        for item in map(copy, given):
            item.content = sanitize_text(item.content)
            if item.content:
                items.append(item)
        ephemeral: list[ContextInjection] = []
        if items:
            self._meter.charge(items, size_limit=self.injection_size_limit, budget=self.injection_budget_per_turn)
            ephemeral = await store(items, self._add_message if self._can_store() else None)
        left = _copy_without_injections(result)
        if ephemeral:
            left.action = "inject_context"
            write_items(left, ephemeral)
        return left

    def _can_store(self) -> bool:
        return getattr(self.mounts.points.get("context"), "add_message", None) is not None

    async def _add_message(self, message: dict[str, Any]) -> None:
        answer = self.mounts.points["context"].add_message(message)
        if not isawaitable(answer):
            return
        what, calls = "context.add_message", PublishedCalls(self.watch, passes=is_no_exception)
        try:
            await calls.run(answer, self.deadlines.hook, what)
        except DeadlinePassed as late:
            raise DeadlineExceeded(f"{what}: {late}", operation=what, seconds=late.seconds) from None
        finally:
            calls.close()

    async def _asked(self, result: Any, hook_name: str) -> HookResult:
        prompt = "Allow this operation?" if result.approval_prompt is None else result.approval_prompt
        options = ["Allow", "Deny"] if result.approval_options is None else result.approval_options
        if self.approval_system is None:
            logger.error("hook %r requests approval and there is no approval system: denied", hook_name)
            return HookResult(action="deny", reason="No approval system available")
        timeout = result.approval_timeout
        calls = PublishedCalls(self.watch, passes=is_no_exception)
        try:
            answer = self.approval_system.request_approval(prompt, options, timeout, result.approval_default)
            if isawaitable(answer):
                seconds = timeout if isinstance(timeout, int | float) and timeout > 0 else None
                answer = await calls.run(answer, seconds, f"approval for hook {hook_name!r}")
        except (DeadlinePassed, ApprovalTimeoutError):
            if result.approval_default == "allow":
                return HookResult(action="continue")
            return HookResult(action="deny", reason=f"Approval timeout - denied by default: {_shorten(prompt)}")
        finally:
            calls.close()
        if not isinstance(answer, str):
            raise TypeError(f"the approval system answered {answer!r}; expected one of {options!r}")
        chosen = answer.lower()
        if chosen in _ALLOWING:
            return HookResult(action="continue")
        if chosen != "deny":
            logger.warning("the approval system answered %r, which allows nothing: denied", answer)
        return HookResult(action="deny", reason=f"User denied: {_shorten(prompt)}")

    # ── modules in tasks of their own ──

    async def host_as(
        self, owner: str | None, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Any:
        """Keep a context manager open; a task that owns the session's task group is started for the first one."""
        await self._owner.start()
        return await super().host_as(owner, context_manager, name=name)

    def start_soon_as(
        self,
        owner: str | None,
        fn: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
        fatal: bool = False,
    ) -> None:
        """Start background work; a task that owns the session's task group is started for the first one.

        Raises:
            SessionStateError: The session is closed.
        """
        if self.hosting.is_shut:
            raise SessionStateError(f"start_soon({name or fn!r}) comes too late: the session is closed")
        start = partial(super().start_soon_as, owner, fn, *args, name=name, fatal=fatal)
        self._owner.call_with_group(start)

    # ── cleanup ──

    def register_cleanup_as(self, owner: str | None, cleanup_fn: Any) -> None:
        """Register a cleanup; what is not callable is ignored."""
        if callable(cleanup_fn):
            self._cleanup_fns.append(cleanup_fn)

    async def cleanup(self) -> None:
        """Run all registered cleanups, the last one first; calling it again runs them again.

        Raises:
            BaseException: The first one among them that is no Exception (Ctrl-C, exit), after all ran. A cancellation that a
                cleanup raises by itself is its failure and is logged.
        """
        fatal = await run_section(self.run_cleanups, name="amplifier cleanup", shield=True)
        if fatal is not None:
            raise fatal

    async def run_cleanups(self) -> BaseException | None:
        """Run all cleanups and end the background work of the session.

        Returns:
            The first exception raised that is no Exception.
        """
        fatal: BaseException | None = None
        for cleanup in reversed([step for step in self._cleanup_fns if callable(step)]):
            calls = PublishedCalls(self.watch, passes=is_fatal)
            try:
                answer = cleanup()
                if isawaitable(answer):
                    await calls.run(answer, self.deadlines.cleanup, f"cleanup {cleanup!r}")
            except BaseException as exc:  # third-party code; the remaining cleanups must run
                failure = _failure_of_cleanup(exc)
                logger.error("Error during cleanup: %s (%r)", failure or repr(exc), cleanup, exc_info=failure)
                if failure is None:
                    fatal = fatal or exc
            finally:
                calls.close()
        await self._owner.settle()
        seconds = self.deadlines.teardown
        _, interrupt = await self.unwind(TimeBudget(math.inf if seconds is None else loop_clock()() + seconds))
        await self._owner.end()
        return fatal or interrupt


ModuleCoordinator = RustCoordinator
"""The published name; suites also import the other one."""


def _check_session(session: Any) -> None:
    """A session, as far as a coordinator needs one."""
    if session is None:
        return
    if not isinstance(session.session_id, str):
        raise TypeError(f"session_id must be a str, got {session.session_id!r}")
    if session.parent_id is not None and not isinstance(session.parent_id, str):
        raise TypeError(f"parent_id must be a str or None, got {session.parent_id!r}")
    _ = session.config


def _failure_of_cleanup(exc: BaseException) -> Exception | None:
    """What a cleanup's exception is as its failure; None for one that the caller must raise."""
    if isinstance(exc, Exception):
        return exc
    return contained_failure(exc) if is_cancellation_type(exc) and not is_real_cancellation(exc) else None


def _copy_without_injections(result: Any) -> HookResult:
    return HookResult(
        action="continue",
        data=result.data,
        reason=result.reason,
        approval_prompt=result.approval_prompt,
        approval_options=result.approval_options,
        approval_timeout=result.approval_timeout,
        approval_default=result.approval_default,
        suppress_output=result.suppress_output,
        user_message=result.user_message,
        user_message_level=result.user_message_level,
        user_message_source=result.user_message_source,
    )


def _shorten(prompt: str) -> str:
    return prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}...[truncated]"
