"""Open a session: load and mount the modules of its plan, and announce the failures."""

from __future__ import annotations

import inspect
import logging
import operator
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import CoroutineType
from typing import Protocol, cast

import attrs

from amplifier._internal.json import JSON, redact_text
from amplifier.contracts import CONTRACTS, Cleanup
from amplifier.errors import (
    AmplifierError,
    ContainedError,
    DeadlineExceeded,
    ModuleLoadError,
    ModuleNotFoundError,
    OpeningErrors,
)
from amplifier.events import MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED
from amplifier.loading import LoadedModule, ModuleLoader, load_thing
from amplifier.loading.inspection import is_structured
from amplifier.loading.loader import Listing
from amplifier.models import ModuleType
from amplifier.plan import ModuleSpec, MountPlan

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.deadlines import (
    DeadlinePassed,
    ReusableDeadline,
    call_foreign,
    failure_text,
    failure_words,
)
from ..runtime.frames import WaitInfo

logger: logging.Logger = logging.getLogger("amplifier.session")

_MAX_NAMED = 5
"""Maximum number of errors of a group that the text of a failure includes."""

_MAX_DEPTH = 8
"""Maximum depth to which plans are compared, because a plan may contain itself."""

Ready = Callable[[ModuleCoordinator], object]
"""The on_session_ready function of a module, sync or async."""


@attrs.frozen
class ModuleFailure:
    """A module of the plan that could not be used.

    Attributes:
        module_id: The id of the module.
        module_type: The type of the module, such as "tool".
        phase: ``"mount"``, which includes loading, or ``"ready"``.
        error: The error, linked to its cause.
        reason_code: The code of the reason, such as "deadline".
        instance_id: The name that the plan gives a provider, or None.
    """

    module_id: str
    module_type: str
    phase: str
    error: Exception
    reason_code: str = "unknown"
    instance_id: str | None = None


class Loader(Protocol):
    """The part of an application's loader that the kernel calls.

    It returns a `LoadedModule`, a mount function that takes a coordinator, or an awaitable of
    either.
    """

    def load(self, module_id: str, config: Mapping[str, JSON], *, source_hint: object) -> object:
        """Find and import a module."""


class PlanOnce:
    """The plan that was read when the session was created, kept for the next opening.

    The application may change its dict in the meantime. The plan is then read again, which takes
    ten times as long as the search for a change.

    Args:
        config: The dict.
        plan: The plan that was read from it.
    """

    __slots__ = ("_parts", "_plan")

    def __init__(self, config: object, plan: MountPlan) -> None:
        self._parts = _parts_of(config)
        self._plan = plan

    def plan_for(self, config: object) -> MountPlan | None:
        """Return the plan, or None if the dict has changed or may have changed."""
        parts = _parts_of(config)
        is_same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        return self._plan if is_same else None


def _parts_of(plan: object) -> list[object]:
    """Return all keys and values of a plan, with the length of each dict and list.

    Two plans are equal if their parts are identical objects.
    """
    parts: list[object] = []
    _add_parts((plan,), parts, 0)
    return parts


def _add_parts(values: Iterable[object], parts: list[object], depth: int) -> None:
    for value in values:
        if type(value) is str:
            parts.append(value)
        elif type(value) is dict and depth < _MAX_DEPTH:
            parts.append(len(value))
            parts.extend(value)
            _add_parts(value.values(), parts, depth + 1)
        elif type(value) is list and depth < _MAX_DEPTH:
            parts.append(len(value))
            _add_parts(value, parts, depth + 1)
        elif isinstance(value, str) or not isinstance(value, Collection):
            parts.append(value)
        else:
            # The contents of other containers may have changed, so add an object that equals no
            # other.
            parts.append(object())


# Modules are mounted in the order orchestrator, context, providers, tools, hooks. Failures are
# announced afterwards, so that hook modules receive even the failures of modules mounted before
# them. Finally the on_session_ready functions are called in the order of mounting.


class Opening:
    """One run through a plan.

    Args:
        plan: The plan.
        coordinator: The coordinator of the session.
        loader: The loader of the session.

    Attributes:
        failures: The modules that could not be used so far.
    """

    def __init__(self, plan: MountPlan, coordinator: ModuleCoordinator, loader: Loader) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._loader = loader
        self._loads_at_once = False
        self._deadline = ReusableDeadline(coordinator.watch)
        self._listing: Listing = {}
        self._mounted: list[tuple[str, ModuleSpec, ModuleCoordinator, Ready]] = []
        self._names: set[str] = set()
        self._now: tuple[str, str] | None = None
        self.failures: list[ModuleFailure] = []

    async def run(self) -> None:
        """Mount everything.

        Raises:
            ModuleLoadError: The orchestrator, the context or a gate failed.
            OpeningErrors: In strict mode, several modules failed. A single failure is raised as
                itself.
        """
        loader = self._loader
        if isinstance(loader, ModuleLoader):
            loader.acquire(self._coordinator)
            # Otherwise a resolver of another session might have to be awaited.
            self._loads_at_once = (
                loader.coordinator is None or loader.coordinator is self._coordinator
            )
        try:
            for kind, spec in self._modules():
                await self._mount(kind, spec)
            self._deadline.close()
            self._require_provider_in_strict_mode()
            self._raise_in_strict_mode()
            for failure in self.failures:
                await self._announce(failure)
            for kind, spec, view, on_session_ready in self._mounted:
                await self._make_ready(kind, spec, view, on_session_ready)
            self._raise_in_strict_mode()
        finally:
            self._deadline.close()

    def wait_info(self) -> WaitInfo | None:
        """Describe the module that is being opened, for reports about sessions that hang."""
        if self._now is None:
            return None
        module, operation = self._now
        label = f"{operation} of module {module!r}"
        return WaitInfo(coordinator=self._coordinator, module=module, label=label)

    def take_failures(self) -> list[ModuleFailure]:
        """Return the failures and drop them here, because their tracebacks lead to this object."""
        failures, self.failures = self.failures, []
        return failures

    def _modules(self) -> Iterator[tuple[str, ModuleSpec]]:
        plan = self._plan
        yield "orchestrator", plan.orchestrator
        yield "context", plan.context
        for spec in plan.providers:
            yield "provider", spec
        for spec in plan.tools:
            yield "tool", spec
        for spec in plan.hooks:
            yield "hook", spec

    def _raise_in_strict_mode(self) -> None:
        """Raise a single failure as itself, or several as a group."""
        if not self._plan.strict or not self.failures:
            return
        errors = [_opening_error(failure) for failure in self.failures]
        try:
            if len(errors) == 1:
                raise errors[0]
            named = ", ".join(f"{f.module_type} {f.module_id!r}" for f in self.failures)
            reasons = "; ".join(failure_text(error) for error in errors[:_MAX_NAMED])
            raise OpeningErrors(
                f"session.strict: {len(errors)} of the plan's modules failed: {named}: {reasons}",
                errors,
            )
        finally:
            # Break the reference cycle with the traceback.
            del errors

    def _require_provider_in_strict_mode(self) -> None:
        """Record a failure if the plan names providers and all of them declined to be mounted.

        A provider may decline, for example without a key, but a session without providers can't
        answer.
        """
        named = [spec.module for spec in self._plan.providers]
        if not self._plan.strict or not named or self.failures:
            return
        if not self._coordinator.mounts.points["providers"]:
            names = ", ".join(map(repr, named))
            error = ModuleLoadError(
                f"no provider is mounted: {names} declined; the reason is in the log",
                module_id=named[0],
                reason_code="not_configured",
            )
            failure = ModuleFailure(named[0], "provider", "mount", error, error.reason_code)
            self.failures.append(failure)

    # ── one module ──

    async def _mount(self, kind: str, spec: ModuleSpec) -> None:
        owner = self._owner_name(spec)
        self._now = owner, "mount"
        coordinator = self._coordinator
        view = coordinator.view_for(owner, spec.on_failure)
        try:
            # Pass a copy, so that a module can't change the plan.
            config = call_foreign(dict, spec.config)
            if spec.thing is not None:
                loaded: object = call_foreign(load_thing, kind, spec)
            elif (
                self._loads_at_once and coordinator.mounts.points["module-source-resolver"] is None
            ):
                loaded = self._load_at_once(spec)
            else:
                loaded = await self._load(spec)
                config = getattr(loaded, "config", config)
            ready = await self._mount_loaded(kind, spec, loaded, config, view, owner)
        except Exception as exc:  # noqa: BLE001 — foreign code: contained and undone (L4)
            # The scope is still open if earlier modules succeeded.
            self._deadline.close()
            await coordinator.undo(owner)
            self._record_mount_failure(kind, spec, exc)
        else:
            if ready is not None:
                self._mounted.append((kind, spec, view, ready))

    # This is a separate function because a frame that holds an exception and is in its traceback
    # forms a reference cycle, which would keep alive everything that the frame refers to.
    def _record_mount_failure(self, kind: str, spec: ModuleSpec, exc: BaseException) -> None:
        """Record and log that a module could not be mounted.

        Raises:
            Exception: The session can't open without this module.
        """
        error = _as_load_error(kind, spec, exc)
        reason = _failure_reason(error)
        failure = ModuleFailure(spec.module, kind, "mount", error, reason, spec.instance_id)
        self.failures.append(failure)
        if error is not exc:
            error.__cause__ = error.__cause__ or exc
        # Without the gate nothing would stop the agent (L7).
        is_required = kind in ("orchestrator", "context") or spec.on_failure == "deny"
        if self._plan.strict or not is_required:
            # A strict session raises the error later.
            log = logger.debug if self._plan.strict else logger.warning
            text = _redacted_traceback(error)
            log("%s %r (%s) is not available:\n%s", kind, spec.module, spec.path, text)
            return
        try:
            raise error
        finally:
            del error, exc, failure

    def _owner_name(self, spec: ModuleSpec) -> str:
        """Return the module's id, made unique when the plan names it more than once."""
        name = spec.module if spec.instance_id is None else f"{spec.module}#{spec.instance_id}"
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}#{count}"
        self._names.add(unique)
        return unique

    async def _load(self, spec: ModuleSpec) -> object:
        loader, coordinator = self._loader, self._coordinator
        load: Callable[..., object] = partial(
            loader.load, spec.module, spec.config, source_hint=spec.source
        )
        if isinstance(loader, ModuleLoader):
            load = partial(load, user=coordinator)
            # A loader created before its session uses the resolver of that session.
            if loader.coordinator is None:
                load = partial(load, coordinator=coordinator)
        loading = call_foreign(load)
        if inspect.isawaitable(loading):
            label = f"loading of {spec.module!r}"
            return await self._deadline.run(loading, coordinator.deadlines.mount, label)
        return loading

    def _load_at_once(self, spec: ModuleSpec) -> LoadedModule:
        """Load a module without awaiting a resolver.

        Raises:
            DeadlinePassed: Loading took too long. This is raised afterwards, because an import
                can't be interrupted.
        """
        seconds = self._coordinator.deadlines.mount
        clock = self._deadline.clock
        started = clock()
        loader = cast("ModuleLoader", self._loader)
        loaded = call_foreign(
            loader.find,
            spec.module,
            spec.source,
            listing=self._listing,
            user=self._coordinator,
        )
        if seconds is not None and clock() - started >= seconds:
            raise DeadlinePassed(seconds)
        return loaded

    async def _mount_loaded(
        self,
        kind: str,
        spec: ModuleSpec,
        loaded: object,
        config: dict[str, JSON],
        view: ModuleCoordinator,
        owner: str,
    ) -> Ready | None:
        """Mount one module and return its on_session_ready, if it has one."""
        mounts = self._coordinator.mounts
        mounts.instance = None if spec.instance_id is None else (owner, spec.instance_id)
        ready: Ready | None = None
        if isinstance(loaded, LoadedModule):
            answer: object = call_foreign(loaded.mount, view, config)
            ready = loaded.on_session_ready
        elif callable(loaded):
            # An application's loader may return a mount function that takes only the coordinator.
            answer = call_foreign(loaded, view)
        else:
            expected = "expected a LoadedModule or a mount function"
            raise ModuleLoadError(
                f"the loader returned {loaded!r} for {spec.module!r}; {expected}",
                module_id=spec.module,
            )
        label = f"mount of module {spec.module!r}"
        seconds = self._coordinator.deadlines.mount
        # Most mount functions are coroutine functions, and the other checks are slower.
        is_coroutine = type(answer) is CoroutineType
        if not is_coroutine and is_structured(answer):
            manager = cast("AbstractAsyncContextManager[object]", answer)
            hosting = self._coordinator.hosting
            entering = hosting.host(manager, name=spec.module, owner=owner, is_mount=True)
            host = await self._deadline.run(entering, seconds, label)
            self._mount_instance(kind, host.value, owner)
        else:
            try:
                if is_coroutine or inspect.isawaitable(answer):
                    waiting = cast("Awaitable[object]", answer)
                    answer = await self._deadline.run(waiting, seconds, label)
            except DeadlinePassed as late:
                # Register a late result, so that undoing the module closes its resources.
                self._accept_result(kind, late.answer, view, owner)
                raise
            self._accept_result(kind, answer, view, owner)
        # Reset it, because the module may not have mounted a provider.
        mounts.instance = None
        return ready

    def _accept_result(
        self, kind: str, result: object, view: ModuleCoordinator, owner: str
    ) -> None:
        """Mount the instance that a mount function returned, or register the cleanup."""
        if result is not None and not self._mount_instance(kind, result, owner):
            # An object that isn't callable is ignored.
            view.register_cleanup(cast("Cleanup", result))

    def _mount_instance(self, kind: str, result: object, owner: str) -> bool:
        """Mount a returned instance that isn't mounted yet.

        Return whether the result is an instance.
        """
        # The result of a hook module is its cleanup, which is callable like a handler.
        if result is None or kind == "hook":
            return False
        contract = CONTRACTS[cast("ModuleType", kind)]
        mounts = self._coordinator.mounts
        for _, _, module in mounts.mounted_by(owner):
            if result is module or result is getattr(module, "__wrapped__", None):
                return True
        if isinstance(result, type) or not isinstance(result, contract.protocol):
            return False
        mounts.mount(contract.mount_point, result, None, owner)
        return True

    # ── afterwards ──

    async def _announce(self, failure: ModuleFailure) -> None:
        details = {
            "module_type": failure.module_type,
            "module_id": failure.module_id,
            "error": failure_text(failure.error),
            "reason_code": failure.reason_code,
        }
        if failure.instance_id is not None:
            details["instance_id"] = failure.instance_id
        await self._coordinator.hooks.emit(MODULE_LOAD_FAILED, details)

    async def _make_ready(
        self, kind: str, spec: ModuleSpec, view: ModuleCoordinator, on_session_ready: Ready
    ) -> None:
        label = f"on_session_ready of module {spec.module!r}"
        seconds = self._coordinator.deadlines.ready
        self._now = spec.module, "on_session_ready"
        problem: str | None = None
        try:
            answer = call_foreign(on_session_ready, view)
            if inspect.isawaitable(answer):
                await self._deadline.run(answer, seconds, label)
        except Exception as exc:  # noqa: BLE001 — foreign code; not fatal by contract
            self._deadline.close()
            problem = self._record_ready_failure(kind, spec, exc)
        if problem is not None:
            details = {"module_id": spec.module, "error": problem}
            await self._coordinator.hooks.emit(MODULE_ON_SESSION_READY_FAILED, details)

    # This is a separate function for the same reason as `_record_mount_failure`.
    def _record_ready_failure(self, kind: str, spec: ModuleSpec, exc: Exception) -> str:
        """Record and log that on_session_ready failed.

        Returns:
            The text of the error, for the event.

        Raises:
            ModuleLoadError: The module is a gate, so the session doesn't open.
        """
        error: Exception = exc
        if isinstance(exc, DeadlinePassed):
            error = _deadline_error("on_session_ready", spec.module, exc)
        self.failures.append(ModuleFailure(spec.module, kind, "ready", error, "ready_failed"))
        if spec.on_failure == "deny" and not self._plan.strict:
            raise ModuleLoadError(
                f"gate {spec.module!r} did not get ready: {_words(error)}",
                module_id=spec.module,
                reason_code="ready_failed",
            ) from error
        text = _redacted_traceback(error)
        logger.warning("on_session_ready of module %r failed:\n%s", spec.module, text)
        return _words(error) if isinstance(error, ExceptionGroup) else failure_text(error)


def _failure_reason(exc: BaseException) -> str:
    """Return the reason code of an error of Amplifier, or ``unknown`` for any other error."""
    if isinstance(exc, ModuleLoadError):
        return exc.reason_code
    if isinstance(exc, ModuleNotFoundError):
        return "missing_source"
    if isinstance(exc, DeadlineExceeded):
        return "deadline"
    return "mount_failed" if isinstance(exc, AmplifierError) else "unknown"


def release_loader(coordinator: ModuleCoordinator) -> None:
    """Release the sys.path entries of a closed session that no other session uses."""
    loader = coordinator.loader
    if isinstance(loader, ModuleLoader):
        loader.release(coordinator)
    elif (clean_up := getattr(loader, "cleanup", None)) is not None:
        try:
            call_foreign(clean_up)
        except Exception:  # foreign code
            logger.exception("the loader of session %r failed to clean up", coordinator.session_id)


def _deadline_error(operation: str, module: str, late: DeadlinePassed) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{operation} of module {module!r} gave {late}; it was cancelled",
        operation=operation,
        module=module,
        seconds=late.seconds,
    )


def _as_load_error(kind: str, spec: ModuleSpec, exc: BaseException) -> Exception:
    """Return the error to show to users.

    An error of Amplifier is returned unchanged. Any other is wrapped in an error with the module's
    name.
    """
    if isinstance(exc, DeadlinePassed):
        error = ModuleLoadError(
            f"{kind} {spec.module!r} failed: its mount gave {exc}",
            module_id=spec.module,
            reason_code="deadline",
        )
        error.__cause__ = _deadline_error("mount", spec.module, exc)
        return error
    if isinstance(exc, AmplifierError) and not isinstance(exc, ContainedError):
        if getattr(exc, "module_id", None) != spec.module:
            exc.add_note(f"raised by the mount of {kind} {spec.module!r}")
        return exc
    return ModuleLoadError(
        f"{kind} {spec.module!r} failed to mount: {_words(exc)}",
        module_id=spec.module,
        reason_code="mount_failed",
    )


def _opening_error(failure: ModuleFailure) -> Exception:
    """Return the error that a failed opening raises for one module."""
    error = failure.error
    if isinstance(error, AmplifierError):
        return error
    raised = ModuleLoadError(
        f"{failure.module_type} {failure.module_id!r} did not get ready: {_words(error)}",
        module_id=failure.module_id,
        reason_code=failure.reason_code,
    )
    raised.__cause__ = error
    return raised


def _words(error: BaseException) -> str:
    """Return an error as text with its type and without secrets.

    The text of a group consists of the texts of its errors, because its own message doesn't include
    them.
    """
    if not isinstance(error, BaseExceptionGroup):
        return failure_words(error)
    leaves = list(_leaves(error))
    words = "; ".join(_words(leaf) for leaf in leaves[:_MAX_NAMED])
    if len(leaves) == 1:
        return words
    more = f"; and {len(leaves) - _MAX_NAMED} more" if len(leaves) > _MAX_NAMED else ""
    return f"{type(error).__name__} of {words}{more}"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _redacted_traceback(error: Exception) -> str:
    """Return a traceback as text, without the credentials that errors of providers may contain."""
    return redact_text("".join(traceback.format_exception(error)))
