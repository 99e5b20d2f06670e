"""The session in its published form, ``amplifier_core.AmplifierSession``.

It is opened and closed by hand or by ``async with``; errors of a turn leave as ``RuntimeError`` with the original as their cause; a
request to the token cancels the turn only if the loop does not end it by itself. The guarantees of the kernel hold: nothing is left
running behind a closed session, cleanups are shielded and bounded, a cancelled turn unwinds before `execute` returns. The mirror's
``_session_init`` and ``_session_exec`` are looked up at each call, because published tests patch them.
"""

from __future__ import annotations

import importlib
import json
import logging
import types
import uuid
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, Self, cast

import anyio

from amplifier.contracts._containment import is_cancellation_type, is_real_cancellation
from amplifier.errors import ExecutionCancelled, SessionBusyError, SessionStateError, SpuriousCancellation
from amplifier.events import CANCEL_COMPLETED, SESSION_END, SESSION_RESUME, SESSION_START
from amplifier.kernel.runtime.backend import Loop, start_timer
from amplifier.kernel.runtime.sections import run_section
from amplifier.kernel.session.turn import metered_turn

from .._modules.processes import guard_tools
from .._modules.turns import PublishedTurn
from .coordinator import ModuleCoordinator
from .hooks import RustHookRegistry

logger = logging.getLogger("amplifier_core.session")

IMMEDIATE_GRACE = 1.0
"""Seconds in which a published loop may answer an immediate request by itself, before its turn is cancelled."""

_inside: ContextVar[tuple[int, ...]] = ContextVar("amplifier_compat_inside_turn_of", default=())


class RustSession:
    """One agent, as published code drives it.

    Args:
        config: The mount plan; kept as it is, later changes are seen by `initialize`.
        loader: Ignored, as published; set ``coordinator.loader`` instead.
        session_id: Generated if absent.
        parent_id: The session this one was forked from.
        approval_system: Answers approval requests of hooks.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.
    """

    __slots__ = (
        "__weakref__",
        "_claimed_start",
        "_closing",
        "_config",
        "_coordinator",
        "_emitted_end",
        "_initialized",
        "_is_resumed",
        "_metadata",
        "_opening",
        "_own_loader",
        "_stop_timer",
        "_turn",
        "_turn_over",
    )

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
        section = _checked_section(config)
        if loader is not None:
            logger.warning(
                "loader parameter passed to AmplifierSession but is not used; set session.coordinator.loader"
            )
        for name, value in (("session_id", session_id), ("parent_id", parent_id)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str or None, got {value!r}")
        face = types.SimpleNamespace(
            session_id=str(uuid.uuid4()) if session_id is None else session_id, parent_id=parent_id, config=config
        )
        self._config = config
        self._metadata = section.get("metadata")
        self._is_resumed = bool(is_resumed)
        self._coordinator = ModuleCoordinator(face, approval_system, display_system)
        self._initialized = False
        self._claimed_start = False
        self._emitted_end = False
        self._own_loader: Any = None
        self._opening: anyio.Event | None = None
        self._closing: anyio.Event | None = None
        self._turn: PublishedTurn | None = None
        self._turn_over: anyio.Event | None = None
        self._stop_timer: Any = None

    def __repr__(self) -> str:
        return f"<amplifier_core.AmplifierSession {self.session_id!r}{' open' if self._initialized else ''}>"

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._coordinator.session_id

    @property
    def parent_id(self) -> str | None:
        """The parent session's id, in a child."""
        return self._coordinator.parent_id

    @property
    def coordinator(self) -> ModuleCoordinator:
        """The coordinator of the session."""
        return self._coordinator

    @property
    def config(self) -> dict[str, Any]:
        """The mount plan, the same object that was given."""
        return self._config

    @property
    def is_resumed(self) -> bool:
        """Whether the first turn announces ``session:resume``."""
        return self._is_resumed

    @property
    def initialized(self) -> bool:
        """Whether the session is open."""
        return self._initialized

    # ── opening ──

    async def initialize(self) -> None:
        """Load and mount the plan's modules; does nothing when that has happened.

        Raises:
            RuntimeError: Something fatal went wrong; see the cause. What was mounted stays until `cleanup`.
        """
        while self._opening is not None:
            await self._opening.wait()
        if self._initialized:
            return
        opening = self._opening = anyio.Event()
        try:
            await self._initialize()
        finally:
            self._opening = None
            opening.set()

    async def _initialize(self) -> None:
        coordinator = self._coordinator
        coordinator.show_session(self)
        coordinator.hosting.reopen()
        had_loader = coordinator.loader is not None
        init = importlib.import_module("amplifier_core._session_init")
        try:
            await PublishedTurn().run(
                lambda: init.initialize_session(self._config, coordinator, self.session_id, self.parent_id),
                name=f"amplifier open {self.session_id}",
            )
        except BaseException as exc:
            failure = _as_failure("Session initialization failed", exc)
            if failure is None:
                raise
            raise failure from _cause(exc)
        finally:
            if not had_loader:
                self._own_loader = coordinator.loader
        coordinator.cancellation.attach(loop := Loop(), loop.spawn_timer, self._note_request)
        self._emitted_end = False
        self._initialized = True

    async def __aenter__(self) -> Self:
        try:
            await importlib.import_module("amplifier_core._session_init")._session_aenter(self)
        except BaseException:
            await self._coordinator.cleanup()  # the block is never left, so `__aexit__` does not run
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.cleanup()
        except BaseException as exc:
            if self._initialized and is_cancellation_type(exc):  # no caller has the session any more
                await run_section(self._close, name=f"amplifier close {self.session_id}", shield=True)
            raise

    # ── turns ──

    def execute(self, prompt: str) -> Awaitable[str]:
        """Run one turn.

        Raises:
            RuntimeError: The session is not open (raised by the call itself), or the turn failed; the cause is the
                orchestrator's own exception.
            SessionBusyError: Another turn is running.
            TypeError: The prompt, or what the orchestrator returned, is not text.
        """
        if not self._initialized:
            raise RuntimeError("Session not initialized. Call initialize() first.")
        if not isinstance(prompt, str):
            raise TypeError(f"a prompt must be a str, got {type(prompt).__name__}")
        return self._execute(prompt)

    async def _execute(self, prompt: str) -> str:
        if self._turn is not None:
            raise SessionBusyError(
                f"session {self.session_id!r} is running a turn; wait for it before starting another"
            )
        guard_tools(self._coordinator.mounts.points.get("tools"))
        turn = self._turn = PublishedTurn()
        self._coordinator.turn_number += 1
        inside = _inside.set((*_inside.get(), id(self)))
        try:
            await self._emit_start()
            self._watch_token()
            answer = await self._run(turn, prompt)
        finally:
            _inside.reset(inside)
            self._turn = None
            self._end_timer()
            if self._turn_over is not None:
                self._turn_over.set()
        if not isinstance(answer, str):
            raise TypeError(f"the orchestrator returned {type(answer).__name__}; expected a str")
        return answer

    async def _run(self, turn: PublishedTurn, prompt: str) -> Any:
        execution = importlib.import_module("amplifier_core._session_exec")
        token = self._coordinator.cancellation
        try:
            answer = await turn.run(
                lambda: execution.run_orchestrator(self._coordinator, prompt), name=f"amplifier turn {self.session_id}"
            )
        except BaseException as exc:
            stopped = turn.why_stopped is not None and is_cancellation_type(exc)
            if token.is_cancelled:
                await self._emit_cancelled(_words(exc, turn.why_stopped))
            failure = _as_failure("Execution failed", exc, turn.why_stopped)
            if failure is None:
                raise
            raise failure from self._stopped(turn) if stopped else _cause(exc)
        if answer is None and turn.why_stopped is not None:  # trio: the scope took the cancellation in
            text = f"CancelledError: {turn.why_stopped}"
            if token.is_cancelled:
                await self._emit_cancelled(text)
            raise RuntimeError(f"Execution failed: {text}") from self._stopped(turn)
        if token.is_cancelled:
            await self._emit_cancelled(None)
        return answer

    def _stopped(self, turn: PublishedTurn) -> ExecutionCancelled:
        text = f"the turn of session {self.session_id!r} was stopped: {turn.why_stopped}"
        return ExecutionCancelled(text, session_id=self.session_id)

    async def _emit_start(self) -> None:
        if not self._claimed_start:
            self._claimed_start = True
            details: dict[str, Any] = {"session_id": self.session_id, "parent_id": self.parent_id}
            if self._metadata:
                details["metadata"] = self._metadata
            await self._coordinator.hooks.emit(SESSION_RESUME if self._is_resumed else SESSION_START, details)
        execution = importlib.import_module("amplifier_core._session_exec")
        event = SESSION_RESUME if self._is_resumed else SESSION_START
        await execution.emit_raw_field_if_configured(self._coordinator, self._config, self.session_id, event)

    async def _emit_cancelled(self, error: str | None) -> None:
        details: dict[str, Any] = {"was_immediate": self._coordinator.cancellation.is_immediate}
        if error is not None:
            details["error"] = error
        await self._coordinator.hooks.emit(CANCEL_COMPLETED, details)

    # ── an immediate request that the loop does not answer ──

    def _note_request(self) -> None:
        """On the loop: something was requested of the token."""
        self._coordinator.cancellation.take_requests()
        self._watch_token()

    def _watch_token(self) -> None:
        if self._turn is not None and self._stop_timer is None and self._coordinator.cancellation.is_immediate:
            loop = Loop()
            self._stop_timer = start_timer(IMMEDIATE_GRACE, self._escalate, loop.spawn_timer)

    def _escalate(self) -> None:
        self._stop_timer = None
        if self._turn is not None and self._coordinator.cancellation.is_immediate:
            logger.info("the turn of session %r did not end by itself: cancelled", self.session_id)
            self._turn.stop("an immediate stop was requested, and the loop did not end the turn by itself")

    def _end_timer(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None

    # ── closing ──

    async def cleanup(self) -> None:
        """Close the session: ``session:end`` while hooks are live, then all cleanups in reverse.

        A second caller waits for the first. A task that is cancelled while the handlers of ``session:end`` run ends them, and
        what is mounted stays until the next call, which does not emit the event again. From then on nothing stops it: the
        cleanups are shielded, each is bounded.

        Raises:
            SessionStateError: Called from inside one of the session's own turns.
            BaseException: The first Ctrl-C or exit that a handler of the end or a cleanup raised, after all have run.
        """
        if self._turn is not None and id(self) in _inside.get():
            raise SessionStateError(f"session {self.session_id!r} cannot be closed from inside its own turn")
        while self._closing is not None:
            await self._closing.wait()
        closing = self._closing = anyio.Event()
        ending: BaseException | None = None
        try:
            if self._turn is not None:
                await run_section(self._end_turn, name=f"amplifier stop {self.session_id}", shield=True)
            if self._initialized and not self._emitted_end:
                self._emitted_end = True
                try:
                    await self._emit_end()
                except (KeyboardInterrupt, SystemExit) as exc:  # raised below, when all is closed
                    ending = exc
            fatal = await run_section(self._close, name=f"amplifier close {self.session_id}", shield=True)
        finally:
            self._closing = None
            closing.set()
        ending = ending or fatal
        if isinstance(ending, KeyboardInterrupt | SystemExit):
            raise ending

    async def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn_over = anyio.Event()
            self._turn.stop("the session was closed while the turn was running")
            await self._turn_over.wait()
            self._turn_over = None

    async def _emit_end(self) -> None:
        hooks = cast("RustHookRegistry", self._coordinator.hooks)
        details = {"session_id": self.session_id}
        try:
            await PublishedTurn(is_shielded=True).run(
                hooks.emit_end, SESSION_END, details, name=f"amplifier end {self.session_id}"
            )
        except Exception:  # hooks are third-party code; the rest must run
            logger.exception("session %r could not emit session:end", self.session_id)

    async def _close(self) -> BaseException | None:
        coordinator = self._coordinator
        try:
            fatal = await coordinator.run_cleanups()
        finally:
            self._initialized = False
            coordinator.hosting.shut()
            coordinator.cancellation.detach()
            coordinator.watch.stop()
            self._release_loader()
        return fatal

    def _release_loader(self) -> None:
        """Release the sys.path entries of a loader that only this session uses."""
        loader, self._own_loader = self._own_loader, None
        release = None if loader is None else getattr(loader, "cleanup", None)
        if release is not None:
            try:
                release()
            except Exception:  # suites put doubles here
                logger.exception("the loader of session %r failed to clean up", self.session_id)


AmplifierSession = RustSession
"""The published name; suites also import the other one."""


def _checked_section(config: Any) -> dict[str, Any]:
    """The plan's session section, as far as a session can be built on it.

    Raises:
        TypeError: Plan or section is not a dict.
        ValueError: Something is missing, or there is a budget, which would not be kept.
        RuntimeError: The plan holds numbers that JSON does not have.
    """
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
    if (section or {}).get("budget") is not None or metered_turn.get() is not None:
        raise ValueError(
            "amplifier_core.AmplifierSession cannot keep a session.budget, neither one in its plan nor that of the turn in which it "
            "is created; use amplifier.AmplifierSession, or remove session.budget"
        )
    try:
        json.dumps(config, default=str, allow_nan=False)
    except ValueError as exc:
        if "Circular" not in str(exc):
            raise RuntimeError(f"Invalid config JSON: {exc}") from exc
    return section or {}


def _as_failure(what: str, exc: BaseException, why_stopped: str | None = None) -> RuntimeError | None:
    """The published error that callers see; None for what they get as it is: their own cancellation, Ctrl-C and exit."""
    if isinstance(exc, KeyboardInterrupt | SystemExit | GeneratorExit) or is_real_cancellation(exc):
        return None
    return RuntimeError(f"{what}: {_words(exc, why_stopped)}")


def _words(exc: BaseException, why_stopped: str | None) -> str:
    """Kind and text of an error; the cancellation of a turn that was stopped has no text of its own."""
    text = why_stopped if why_stopped is not None and is_cancellation_type(exc) else _text(exc)
    return f"{type(exc).__name__}: {text}"


def _cause(exc: BaseException) -> BaseException:
    return SpuriousCancellation(f"a module raised {type(exc).__name__}") if is_cancellation_type(exc) else exc


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 — the text of an exception is third-party code as well
        return repr(type(exc))
