"""Loading and mounting a plan in the published order, as published tests call and patch it.

Orchestrator, context, providers, tools, hooks, then every module's ``on_session_ready``, then ``session:fork``. Works with any
coordinator and any loader that look like the published ones.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from amplifier.compat._modules.adapting import ready_published

from .events import MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED, SESSION_FORK
from .utils import redact_secrets

__all__ = ["initialize_session"]

logger = logging.getLogger(__name__)


async def initialize_session(config: dict[str, Any], coordinator: Any, session_id: str, parent_id: str | None) -> None:
    """Load and mount everything a plan names.

    Raises:
        RuntimeError: Orchestrator or context could not be mounted.
        ValueError: Several entries of one provider have no ``instance_id``.
    """
    opening = _Opening(config, coordinator)
    await opening.mount_required("orchestrator", "loop-basic", "orchestrator")
    await opening.mount_required("context", "context-simple", "context manager")
    _check_instances(config.get("providers", []))
    for spec in config.get("providers", []):
        if spec.get("module"):
            await opening.mount_provider(spec)
    for section, kind in (("tools", "tool"), ("hooks", "hook")):
        for spec in config.get(section, []):
            if spec.get("module"):
                await opening.mount_optional(spec, kind)
    await opening.make_ready()
    if parent_id:
        await coordinator.hooks.emit(SESSION_FORK, _lineage(config, session_id, parent_id))
    logger.info("Session %s initialized successfully", session_id)


async def _session_aenter(session: Any) -> Any:
    """What entering ``async with session:`` does."""
    await session.initialize()
    return session


async def _emit_module_load_failed(
    coordinator: Any, module_type: str, module_id: str, error: BaseException, *, instance_id: str | None = None
) -> None:
    """Emit ``module:load_failed``; a failure to emit is only logged."""
    from .loader import module_failure_reason  # noqa: PLC0415 — the loader imports the validators, and they this file's neighbours

    details = {
        "module_type": module_type,
        "module_id": module_id,
        "error": _safe_exception_str(error),
        "reason_code": module_failure_reason(error),
    }
    if instance_id:
        details["instance_id"] = instance_id
    try:
        await coordinator.hooks.emit(MODULE_LOAD_FAILED, details)
    except Exception:  # handlers are third-party code
        logger.debug("module:load_failed could not be announced", exc_info=True)


def _safe_exception_str(e: BaseException) -> str:
    """An exception's text, or its repr if the text cannot be decoded."""
    try:
        return str(e)
    except UnicodeDecodeError:
        return repr(e)


class _Opening:
    """One run through a plan."""

    def __init__(self, config: dict[str, Any], coordinator: Any) -> None:
        self._config = config
        self._coordinator = coordinator
        if coordinator.loader is None:
            from .loader import ModuleLoader  # noqa: PLC0415 — tests patch the name there

            coordinator.loader = ModuleLoader(coordinator=coordinator)
        self._loader = coordinator.loader
        self._ready: list[tuple[str, Callable[..., Any]]] = []

    async def mount_required(self, name: str, default: str, words: str) -> None:
        """Mount the orchestrator or the context."""
        section = self._config.get("session", {})
        spec = section.get(name, default)
        if isinstance(spec, dict):
            module, source, settings = spec.get("module", default), spec.get("source"), spec.get("config", {})
        else:
            module, source = spec, section.get(f"{name}_source")
            settings = self._config.get(name, {}).get("config", {})
        try:
            self._enqueue(await self._mount(module, settings, source), module)
        except Exception as exc:
            raise RuntimeError(f"Cannot initialize without {words}: {_safe_exception_str(exc)}") from exc

    async def mount_optional(self, spec: dict[str, Any], kind: str) -> None:
        """Mount a tool or a hook module; if that fails, the session goes on without it."""
        module = spec["module"]
        try:
            self._enqueue(await self._mount(module, spec.get("config", {}), spec.get("source")), module)
        except Exception as exc:  # third-party code, contained here
            logger.warning("Failed to load %s '%s': %s", kind, module, _safe_exception_str(exc), exc_info=True)
            await _emit_module_load_failed(self._coordinator, kind, module, exc)

    async def mount_provider(self, spec: dict[str, Any]) -> None:
        """Mount a provider; if that fails, the providers are exactly what they were before."""
        coordinator, module, instance = self._coordinator, spec["module"], spec.get("instance_id")
        before = dict(coordinator.get("providers") or {})
        try:
            prepare = coordinator.get_capability("provider.before_load")
            if prepare is not None:
                await prepare(coordinator, deepcopy(spec))
            mount = await self._mount(module, spec.get("config", {}), spec.get("source"))
            await self._place_instance(module, instance, before)
            self._enqueue(mount, module)
        except Exception as exc:  # third-party code, contained here
            logger.warning("Failed to load provider '%s': %s", module, _safe_exception_str(exc), exc_info=True)
            await self._restore_providers(before)
            await _emit_module_load_failed(coordinator, "provider", module, exc, instance_id=instance)
            decide = coordinator.get_capability("provider.load_failure")
            if decide is not None:
                await decide(coordinator, deepcopy(spec), exc)

    async def make_ready(self) -> None:
        """Call the ``on_session_ready`` of every mounted module."""
        queue = self._ready
        if hasattr(self._loader, "get_on_session_ready_queue"):
            queue = self._loader.get_on_session_ready_queue()
        for module, function in queue:
            try:
                answer = ready_published(module, function)(self._coordinator)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as exc:  # third-party code; not fatal by contract
                text = _safe_exception_str(exc)
                logger.warning("on_session_ready for '%s' raised: %s", module, text, exc_info=True)
                try:
                    await self._coordinator.hooks.emit(
                        MODULE_ON_SESSION_READY_FAILED, {"module_id": module, "error": text}
                    )
                except Exception:  # handlers are third-party code
                    logger.debug("module:on_session_ready_failed could not be announced", exc_info=True)
        if hasattr(self._loader, "clear_on_session_ready_queue"):
            self._loader.clear_on_session_ready_queue()

    # ── one module ──

    async def _mount(self, module: str, settings: Any, source: Any) -> Any:
        """Load and mount one module, keep its cleanup; returns what the loader gave."""
        logger.info("Loading module '%s'", module)
        mount = await self._loader.load(module, settings, source_hint=source, coordinator=self._coordinator)
        cleanup = await mount(self._coordinator)
        if cleanup:
            self._coordinator.register_cleanup(cleanup)
        return mount

    def _enqueue(self, mount: Any, module: str) -> None:
        """Remember a mounted module's ``on_session_ready``, in the loader's own queue if it has one."""
        ready = getattr(mount, "__on_session_ready__", None)
        if ready is None and hasattr(type(mount), "__attrs_attrs__") and mount.on_session_ready is not None:
            ready = (module, mount.on_session_ready)  # a loader of our kernel
        if not ready:
            return
        if hasattr(self._loader, "enqueue_on_session_ready"):
            self._loader.enqueue_on_session_ready(ready[0], ready[1])
        else:
            self._ready.append((ready[0], ready[1]))

    async def _place_instance(self, module: str, instance: str | None, before: dict[str, Any]) -> None:
        """See that something was mounted, and give a named instance its name."""
        coordinator = self._coordinator
        mounted = coordinator.get("providers") or {}
        if not any(name not in before or provider is not before[name] for name, provider in mounted.items()):
            raise ValueError("Provider mount did not install a new provider instance")
        if not instance:
            return
        default = module.removeprefix("provider-")
        earlier = before.get(default)
        if default not in mounted or mounted[default] is earlier:
            raise ValueError("Named provider mount did not install a new instance at its default mount name")
        if default == instance:
            return
        fresh = mounted[default]
        await coordinator.mount("providers", fresh, name=instance)
        if earlier is None:
            await coordinator.unmount("providers", name=default)
        else:
            await coordinator.mount("providers", earlier, name=default)

    async def _restore_providers(self, before: dict[str, Any]) -> None:
        """Put the providers back to what they were, in that order."""
        coordinator = self._coordinator
        now = coordinator.get("providers") or {}
        if list(now) == list(before) and all(now[name] is before[name] for name in before):
            return
        same_order = [name for name in now if name in before] == list(before)
        for name in list(now):
            if name not in before or not same_order:
                await coordinator.unmount("providers", name=name)
        for name, provider in before.items():
            if (coordinator.get("providers") or {}).get(name) is not provider:
                await coordinator.mount("providers", provider, name=name)


def _check_instances(specs: list[dict[str, Any]]) -> None:
    """Of several entries for one provider, one may go without a name."""
    unnamed: dict[str, int] = {}
    for spec in specs:
        module = spec.get("module", "")
        if module and not spec.get("instance_id"):
            unnamed[module] = unnamed.get(module, 0) + 1
    for module, count in unnamed.items():
        if count > 1:
            raise ValueError(
                f"Multi-instance providers require explicit 'instance_id': {count} entries for module '{module}' have "
                "none, and only one may go without"
            )


def _lineage(config: dict[str, Any], session_id: str, parent_id: str) -> dict[str, Any]:
    section = config.get("session", {})
    details: dict[str, Any] = {"parent": parent_id, "session_id": session_id}
    if section.get("metadata"):
        details["metadata"] = section["metadata"]
    if section.get("raw", False):
        details["raw"] = redact_secrets(config)
    return details
