"""Errors of sessions, turns, hooks and deadlines."""

from __future__ import annotations

from collections.abc import Sequence

from ._base import AmplifierError


class SessionError(AmplifierError):
    """Something about a session's life; see the subclasses."""


class SessionStateError(SessionError, RuntimeError):
    """The call does not fit the session's state: not opened yet, already closed, or another event loop.

    A module gets it as well when it registers something after it was undone. Unlike `SessionBusyError`, waiting does not help.
    """


class NoUnfinishedTurnError(SessionStateError):
    """There is no turn to resume: the conversation is empty, or its latest turn has an answer."""


class SessionBusyError(SessionError, RuntimeError):
    """A turn is running in this session and a second writer was refused.

    Attributes:
        session_id: The session that is busy.
    """

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class ExecutionCancelled(AmplifierError):
    """The turn was stopped through the session's cancellation token and has unwound completely.

    Cancellation from outside (a surrounding scope, ``Task.cancel()``, Ctrl-C) is never turned into this error.

    Attributes:
        session_id: The session whose turn was stopped.
        was_immediate: False when the turn ended during a graceful stop.
        reason: What the requester gave as a reason, if anything.
    """

    def __init__(
        self, message: str, *, session_id: str | None = None, was_immediate: bool = True, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.was_immediate = was_immediate
        self.reason = reason


class ExecutionTimeout(AmplifierError, TimeoutError):
    """The turn as a whole ran into its deadline and has unwound completely.

    Attributes:
        session_id: The session whose turn was stopped.
        seconds: The deadline that fired.
    """

    def __init__(self, message: str, *, session_id: str | None = None, seconds: float | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.seconds = seconds


class ExecutionDenied(AmplifierError):
    """A hook denied what a turn cannot go on without: its prompt or a model call. A denied tool call is a result for the model.

    Attributes:
        event: What was denied: ``prompt:submit`` or ``provider:request``.
        reason: What the hook gave as its reason; may be empty.
    """

    def __init__(self, message: str, *, event: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.event = event
        self.reason = reason


class DeadlineExceeded(AmplifierError, TimeoutError):
    """One call into a module overran its deadline and was cancelled.

    Attributes:
        operation: What was called: ``mount``, ``ready``, ``hook``, ``contribution``, ``cleanup``, …
        module: The module's id, where it is known.
        seconds: The deadline that fired.
    """

    def __init__(self, message: str, *, operation: str = "", module: str | None = None, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.operation = operation
        self.module = module
        self.seconds = seconds


class HookRecursionError(AmplifierError, RecursionError):
    """Handlers emit events that reach themselves again, deeper than the kernel allows.

    Attributes:
        chain: The events, outermost first.
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain: tuple[str, ...] = tuple(chain)


class ApprovalTimeoutError(AmplifierError):
    """An approval system raises this when it stopped waiting; the kernel then applies ``approval_default``."""
