"""Mounting the plan: loads and mounts every module in order, contains what fails, then announces the open session.

Order: orchestrator, context, providers, tools, hooks; then the delayed ``module:load_failed`` events, so that hook modules hear of
failures before them; then ``on_session_ready`` of each module in the order they were mounted.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import attrs

from amplifier._json import redact_text
from amplifier.contracts import CONTRACTS
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
from amplifier.loading._loaded import is_structured
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
"""How many errors of a group the text of a failure names."""


@attrs.frozen
class ModuleFailure:
    """A module of the plan that could not be used.

    Attributes:
        phase: ``"mount"`` (loading included) or ``"ready"``.
        error: What went wrong, with its cause.
    """

    module_id: str
    module_type: str
    phase: str
    error: Exception
    reason_code: str = "unknown"
    instance_id: str | None = None


class Opening:
    """One run through a plan."""

    def __init__(self, plan: MountPlan, coordinator: ModuleCoordinator, loader: Any) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._loader = loader
        self._asks_no_other = False
        self._calls = ReusableDeadline(coordinator.watch)
        self._listing: dict[str, Any] = {}
        self._waiting: list[tuple[str, ModuleSpec, ModuleCoordinator, Callable[..., Any]]] = []
        self._names: set[str] = set()
        self._now: tuple[str, str] | None = None
        self.failures: list[ModuleFailure] = []

    async def run(self) -> None:
        """Mount everything.

        Raises:
            ModuleLoadError: The orchestrator, the context or a gate failed.
            ExceptionGroup: In strict mode, everything that failed.
        """
        loader = self._loader
        if isinstance(loader, ModuleLoader):
            loader.acquire(self._coordinator)
            self._asks_no_other = loader.coordinator is None or loader.coordinator is self._coordinator
        try:
            for kind, spec in self._modules():
                await self._mount(kind, spec)
            self._calls.close()
            self._require_provider_in_strict_mode()
            self._raise_in_strict_mode()
            for failure in self.failures:
                await self._announce(failure)
            for kind, spec, view, on_session_ready in self._waiting:
                await self._make_ready(kind, spec, view, on_session_ready)
            self._raise_in_strict_mode()
        finally:
            self._calls.close()

    def wait_info(self) -> WaitInfo | None:
        """The module that is being opened."""
        if self._now is None:
            return None
        module, what = self._now
        return WaitInfo(coordinator=self._coordinator, module=module, label=f"{what} of module {module!r}")

    def take_failures(self) -> list[ModuleFailure]:
        """What failed, once: their tracebacks lead here, and whoever keeps them must not be led back to them."""
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
        """Raise one failure as itself, and several as a group."""
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
            del errors  # an exception that names its own frame is a reference cycle

    def _require_provider_in_strict_mode(self) -> None:
        """A provider may decline to be mounted, as without a key; a session that was to have one and has none answers nothing."""
        named = [spec.module for spec in self._plan.providers]
        if self._plan.strict and named and not self.failures and not self._coordinator.mounts.points["providers"]:
            error = ModuleLoadError(
                f"no provider is mounted: {', '.join(map(repr, named))} declined; the reason is in the log",
                module_id=named[0],
                reason_code="not_configured",
            )
            self.failures.append(ModuleFailure(named[0], "provider", "mount", error, error.reason_code))

    # ── one module ──

    async def _mount(self, kind: str, spec: ModuleSpec) -> None:
        owner = self._owner_name(spec)
        self._now = owner, "mount"
        view = self._coordinator.view_for(owner, spec.on_failure)
        try:
            config = call_foreign(dict, spec.config)  # a module that changes it does not change the plan
            if spec.thing is not None:
                loaded: Any = call_foreign(load_thing, kind, spec)
            elif self._asks_no_other and self._coordinator.mounts.points["module-source-resolver"] is None:
                loaded = self._load_at_once(spec)
            else:
                loaded = await self._load(spec)
                config = getattr(loaded, "config", config)
            ready = await self._mount_loaded(kind, spec, loaded, config, view, owner)
        except Exception as exc:  # noqa: BLE001 — foreign code: contained here, blamed and undone (L4)
            self._calls.close()  # the scope of the modules before it
            await self._coordinator.undo(owner)
            self._failed_to_mount(kind, spec, exc)
        else:
            if ready is not None:
                self._waiting.append((kind, spec, view, ready))

    def _failed_to_mount(self, kind: str, spec: ModuleSpec, exc: BaseException) -> None:
        """Record and log it.

        In a frame of its own: one that names an exception and is in its traceback is a reference cycle, and with it everything
        the frame can reach would wait for the garbage collector.

        Raises:
            Exception: Without this module the session does not open.
        """
        error = _as_load_error(kind, spec, exc)
        reason = _failure_reason(error)
        self.failures.append(ModuleFailure(spec.module, kind, "mount", error, reason, spec.instance_id))
        if error is not exc:
            error.__cause__ = error.__cause__ or exc
        # Without a loop or a memory there is no agent; without its gate there is one that nothing stops (L7).
        if self._plan.strict or not (kind in ("orchestrator", "context") or spec.on_failure == "deny"):
            log = logger.debug if self._plan.strict else logger.warning  # a strict session raises it
            log("%s %r (%s) is not available:\n%s", kind, spec.module, spec.path, _redacted_traceback(error))
            return
        try:
            raise error
        finally:
            del error, exc

    def _owner_name(self, spec: ModuleSpec) -> str:
        """The module's id, made unique when the plan names it more than once."""
        name = spec.module if spec.instance_id is None else f"{spec.module}#{spec.instance_id}"
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}#{count}"
        self._names.add(unique)
        return unique

    async def _load(self, spec: ModuleSpec) -> Any:
        loader, coordinator = self._loader, self._coordinator
        options: dict[str, Any] = {"source_hint": spec.source}
        if isinstance(loader, ModuleLoader):
            options["user"] = coordinator
            if loader.coordinator is None:  # a loader made before its session asks the session's resolver
                options["coordinator"] = coordinator
        loading = call_foreign(partial(loader.load, spec.module, spec.config, **options))
        if inspect.isawaitable(loading):
            return await self._calls.run(loading, coordinator.deadlines.mount, f"loading of {spec.module!r}")
        return loading

    def _load_at_once(self, spec: ModuleSpec) -> LoadedModule:
        """Load without awaiting, as most modules are; an import cannot be interrupted, only reported late."""
        seconds = self._coordinator.deadlines.mount
        clock = self._calls.clock
        started = clock()
        found: LoadedModule = call_foreign(
            self._loader.find, spec.module, spec.source, listing=self._listing, user=self._coordinator
        )
        if seconds is not None and clock() - started >= seconds:
            raise DeadlinePassed(seconds)
        return found

    async def _mount_loaded(
        self, kind: str, spec: ModuleSpec, loaded: Any, config: dict[str, Any], view: ModuleCoordinator, owner: str
    ) -> Callable[..., Any] | None:
        """Mount one module; returns its on_session_ready."""
        mounts = self._coordinator.mounts
        mounts.instance = None if spec.instance_id is None else (owner, spec.instance_id)
        ready: Callable[..., Any] | None = None
        if isinstance(loaded, LoadedModule):
            answer = call_foreign(loaded.mount, view, config)
            ready = loaded.on_session_ready
        elif callable(loaded):  # loaders of applications may return a bare mount function of the coordinator
            answer = call_foreign(loaded, view)
        else:
            raise ModuleLoadError(
                f"the loader returned {loaded!r} for {spec.module!r}; expected a LoadedModule or a mount function",
                module_id=spec.module,
            )
        label = f"mount of module {spec.module!r}"
        seconds = self._coordinator.deadlines.mount
        if is_structured(answer):
            entering = self._coordinator.hosting.host(answer, name=spec.module, owner=owner, is_mount=True)
            host = await self._calls.run(entering, seconds, label)
            self._take_instance(kind, host.value, owner)
        else:
            try:
                if inspect.isawaitable(answer):
                    answer = await self._calls.run(answer, seconds, label)
            except DeadlinePassed as late:
                self._take(kind, late.answer, view, owner)  # so that undoing the module closes what it has opened
                raise
            self._take(kind, answer, view, owner)
        mounts.instance = None  # if it has mounted no provider
        return ready

    def _take(self, kind: str, result: Any, view: ModuleCoordinator, owner: str) -> None:
        """Take what a mount in the seed form gave back: an instance, or a cleanup."""
        if result is not None and not self._take_instance(kind, result, owner):
            view.register_cleanup(result)

    def _take_instance(self, kind: str, result: Any, owner: str) -> bool:
        """Mount a returned instance that is not mounted yet; True when the result was an instance at all."""
        if result is None or kind == "hook":  # what that returns is its cleanup
            return False
        contract = CONTRACTS[cast("ModuleType", kind)]
        mounts = self._coordinator.mounts
        mounted = [module for _, _, module in mounts.mounted_by(owner)]
        if any(result is module or result is getattr(module, "__wrapped__", None) for module in mounted):
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
        self, kind: str, spec: ModuleSpec, view: ModuleCoordinator, on_session_ready: Callable[..., Any]
    ) -> None:
        label, seconds = f"on_session_ready of module {spec.module!r}", self._coordinator.deadlines.ready
        self._now = spec.module, "on_session_ready"
        problem: str | None = None
        try:
            answer = call_foreign(on_session_ready, view)
            if inspect.isawaitable(answer):
                await self._calls.run(answer, seconds, label)
        except Exception as exc:  # noqa: BLE001 — foreign code; not fatal by contract
            self._calls.close()
            problem = self._failed_to_get_ready(kind, spec, exc)
        if problem is not None:
            details = {"module_id": spec.module, "error": problem}
            await self._coordinator.hooks.emit(MODULE_ON_SESSION_READY_FAILED, details)

    def _failed_to_get_ready(self, kind: str, spec: ModuleSpec, exc: Exception) -> str:
        """Record and log it, in a frame of its own like `_failed_to_mount`.

        Returns:
            The text of the error, for the event.

        Raises:
            ModuleLoadError: The module is a gate; the session does not open.
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
        logger.warning("on_session_ready of module %r failed:\n%s", spec.module, _redacted_traceback(error))
        return _words(error) if isinstance(error, ExceptionGroup) else failure_text(error)


def _failure_reason(exc: BaseException) -> str:
    """The reason code of one of our own errors; foreign errors are ``unknown``, whatever they carry."""
    if isinstance(exc, ModuleLoadError):
        return exc.reason_code
    if isinstance(exc, ModuleNotFoundError):
        return "missing_source"
    if isinstance(exc, DeadlineExceeded):
        return "deadline"
    return "mount_failed" if isinstance(exc, AmplifierError) else "unknown"


def release_loader(coordinator: ModuleCoordinator) -> None:
    """The session has closed: its loader gives up the sys.path entries that no other session uses."""
    loader = coordinator.loader
    if isinstance(loader, ModuleLoader):
        loader.release(coordinator)
    elif (clean_up := getattr(loader, "cleanup", None)) is not None:
        try:
            call_foreign(clean_up)
        except Exception:  # loaders of applications are foreign code
            logger.exception("the loader of session %r failed to clean up", coordinator.session_id)


def _deadline_error(operation: str, module: str, late: DeadlinePassed) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{operation} of module {module!r} gave {late}; it was cancelled",
        operation=operation,
        module=module,
        seconds=late.seconds,
    )


def _as_load_error(kind: str, spec: ModuleSpec, exc: BaseException) -> Exception:
    """The error people see: a loader's own as it is, anything else from a mount wrapped with the module's name."""
    if isinstance(exc, DeadlinePassed):
        error = ModuleLoadError(
            f"{kind} {spec.module!r} failed: its mount gave {exc}", module_id=spec.module, reason_code="deadline"
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
    """An error with its type, without secrets; of a group, the errors inside, since its own text names none of them."""
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
    """Exception texts of providers are known to carry credentials; the traceback is written out to be scrubbed."""
    return redact_text("".join(traceback.format_exception(error)))
