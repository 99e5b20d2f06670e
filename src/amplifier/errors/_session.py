"""Errors of sessions, turns, hooks and deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

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


class BudgetError(AmplifierError):
    """A budget cannot be kept: a price is not known, or the loop calls models past it. See `BudgetExceeded` for one that is used up.

    Attributes:
        what: The limit that cannot be kept, such as ``cost``; None if it is the budget as a whole.
    """

    def __init__(self, message: str, *, what: str | None = None) -> None:
        super().__init__(message)
        self.what = what


class BudgetExceeded(BudgetError):
    """A call was refused, or a turn was stopped, because a limit of ``session.budget`` is used up.

    Attributes:
        what: The limit: ``tokens``, ``cost``, ``model_calls``, ``tool_calls`` or ``seconds``.
        limit: Its value; a Decimal for ``cost``.
        used: What was used of it.
        requested: What the refused call needs at least; 0 for ``seconds``.
        session_id: The session whose limit it is; that of the call or one above it.
    """

    def __init__(
        self,
        message: str,
        *,
        what: str | None = None,
        limit: Decimal | float = 0,
        used: Decimal | float = 0,
        requested: Decimal | float = 0,
        session_id: str | None = None,
    ) -> None:
        super().__init__(message, what=what)
        self.limit = limit
        self.used = used
        self.requested = requested
        self.session_id = session_id


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
