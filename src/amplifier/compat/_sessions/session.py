"""The session in its published form: a native session, driven by hand or by ``async with``, with the published errors."""

from __future__ import annotations

import logging
import weakref
from types import TracebackType
from typing import Any, NoReturn, Self

from amplifier.errors import ContainedError, ExecutionCancelled, ExecutionDenied, SessionBusyError, SessionStateError
from amplifier.kernel import AmplifierSession as KernelSession

from .coordinator import ModuleCoordinator
from .hooks import of_native

logger = logging.getLogger("amplifier_core.session")


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
    is_resumed: Any = of_native("is_resumed", "Whether the first turn announces ``session:resume``.")
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
                raise TypeError(f"a prompt must be a str, got {type(prompt).__name__}: {prompt!r:.80}")
            return await self._native.execute(prompt)
        except (ExecutionCancelled, ExecutionDenied) as exc:
            answer = native.published_answer
            if isinstance(answer, str):  # the loop has answered the request, or the denial, by itself
                return answer
            if isinstance(exc, ExecutionCancelled) and native.cancellation.is_immediate:
                return ""  # as a published loop answers a stop: its program goes on, and stores the conversation
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
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
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
