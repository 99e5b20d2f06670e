"""The second session class of the published kernel, which its submodule ``session`` carries.

It differs from ``amplifier_core.AmplifierSession``: it opens itself at the first turn, keeps a status, takes a loader, and lets
the orchestrator's exceptions out as they are.
"""

from __future__ import annotations

import logging
import uuid
from types import TracebackType
from typing import Any, Self

from amplifier.compat._modules.processes import guard_tools
from amplifier.compat._modules.streaming import providers_for
from amplifier.compat._modules.turns import PublishedTurn

from ._engine import RustCoordinator as ModuleCoordinator
from ._session_init import _safe_exception_str, initialize_session
from .events import CANCEL_COMPLETED, SESSION_END, SESSION_RESUME, SESSION_START
from .loader import ModuleLoader
from .models import SessionStatus
from .utils import redact_secrets

__all__ = ["AmplifierSession"]

logger: logging.Logger = logging.getLogger(__name__)


class AmplifierSession:
    """One agent.

    Args:
        config: The mount plan.
        loader: Finds modules; one of its own if absent.
        session_id: Generated if absent.
        parent_id: The session this one was forked from.
        approval_system: Answers approval requests of hooks.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.

    Raises:
        ValueError: The plan names no orchestrator or no context.
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
        if not config:
            raise ValueError("Configuration is required")
        section = config.get("session", {})
        for name in ("orchestrator", "context"):
            if not section.get(name):
                raise ValueError(f"Configuration must specify session.{name}")
        self._is_resumed = is_resumed
        self.session_id: str = session_id or str(uuid.uuid4())
        self.parent_id = parent_id
        self.config = config
        self.status: SessionStatus = SessionStatus(session_id=self.session_id)
        self._initialized = False
        self._lifecycle_event_emitted = False
        self.coordinator: ModuleCoordinator = ModuleCoordinator(
            session=self, approval_system=approval_system, display_system=display_system
        )
        self.coordinator.hooks.set_default_fields(session_id=self.session_id, parent_id=self.parent_id)
        self.loader: Any = loader or ModuleLoader(coordinator=self.coordinator)

    def _merge_configs(self, base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
        """Deep merge of two plans, the overlay winning."""
        merged = dict(base)
        for key, value in overlay.items():
            present = merged.get(key)
            both = isinstance(present, dict) and isinstance(value, dict)
            merged[key] = self._merge_configs(present, value) if both else value  # type: ignore[arg-type]  # both are dicts
        return merged

    async def initialize(self) -> None:
        """Load and mount the plan's modules, unless that has happened."""
        if self._initialized:
            return
        self.coordinator.loader = self.loader
        await PublishedTurn().run(
            initialize_session,
            self.config,
            self.coordinator,
            self.session_id,
            self.parent_id,
            name=f"amplifier open {self.session_id}",
        )
        self._initialized = True

    async def execute(self, prompt: str) -> Any:
        """Run one turn, after opening the session if need be.

        Raises:
            RuntimeError: Orchestrator, context or providers are missing.
            BaseException: Whatever the orchestrator raised.
        """
        if not self._initialized:
            await self.initialize()
        await self._emit_start()
        mounted = self._mounted()
        token = self.coordinator.cancellation
        self.status.status = "running"
        try:
            answer = await PublishedTurn().run(
                lambda: mounted.pop("orchestrator").execute(prompt=prompt, coordinator=self.coordinator, **mounted),
                name=f"amplifier turn {self.session_id}",
            )
        except BaseException as exc:
            text = _safe_exception_str(exc)
            if token.is_cancelled:
                self.status.status = "cancelled"
                await self._emit_cancelled(text)
                logger.info("Execution cancelled: %s", text)
            else:
                self.status.status = "failed"
                self.status.last_error = {"message": text}
                logger.error("Execution failed: %s", text)
            raise
        if token.is_cancelled:
            self.status.status = "cancelled"
            await self._emit_cancelled(None)
        else:
            self.status.status = "completed"
        return answer

    def _mounted(self) -> dict[str, Any]:
        """What the orchestrator is called with, and the orchestrator itself."""
        mounted: dict[str, Any] = {}
        required = (
            ("orchestrator", "orchestrator module"),
            ("context", "context manager"),
            ("providers", "providers"),
        )
        for point, words in required:
            mounted[point] = self.coordinator.mounts.get(point)
            if not mounted[point]:
                raise RuntimeError(f"No {words} mounted")
        mounted["tools"] = self.coordinator.get("tools") or {}
        guard_tools(mounted["tools"])
        mounted["hooks"] = self.coordinator.get("hooks")
        mounted["providers"] = providers_for(mounted["orchestrator"], mounted["providers"], mounted["tools"])
        return mounted

    async def _emit_start(self) -> None:
        if self._lifecycle_event_emitted:
            return
        self._lifecycle_event_emitted = True
        section = self.config.get("session", {})
        details: dict[str, Any] = {"session_id": self.session_id, "parent_id": self.parent_id}
        if section.get("metadata"):
            details["metadata"] = section["metadata"]
        if section.get("raw", False):
            details["raw"] = redact_secrets(self.config)
        await self.coordinator.hooks.emit(SESSION_RESUME if self._is_resumed else SESSION_START, details)

    async def _emit_cancelled(self, error: str | None) -> None:
        details: dict[str, Any] = {"was_immediate": self.coordinator.cancellation.is_immediate}
        if error is not None:
            details["error"] = error
        await self.coordinator.hooks.emit(CANCEL_COMPLETED, details)

    async def cleanup(self) -> None:
        """Announce the end, run all cleanups, give the loader's paths back.

        Raises:
            BaseException: What a cleanup raised that is no Exception, after all have run.
        """
        try:
            if self._initialized:
                try:
                    await self.coordinator.hooks.emit(
                        SESSION_END, {"session_id": self.session_id, "status": self.status.status}
                    )
                except Exception:  # hooks are third-party code; the rest must run
                    logger.debug("session:end could not be announced", exc_info=True)
            await self.coordinator.cleanup()
        finally:
            if self.loader:
                self.loader.cleanup()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.cleanup()
