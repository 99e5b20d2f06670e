"""From an exception to the one message a person at a terminal gets.

Above: the commands. Below: the error tree. Texts of foreign errors may carry credentials and escape sequences, so every message
is scrubbed here, in one place.
"""

from __future__ import annotations

import errno

from amplifier._json import redact_text, visible_text
from amplifier._spelling import did_you_mean
from amplifier.errors import (
    AmplifierError,
    AuthenticationError,
    LLMError,
    MissingExtraError,
    ModuleNotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)

from .exit_codes import CommandError, Exit
from .nearest_module import is_near

__all__ = ["error_message", "exit_code_of"]

_CLOSED_BY_READER = frozenset({errno.EPIPE, errno.ESHUTDOWN})


def error_message(error: BaseException) -> str:
    """What went wrong and what to do, as text that is safe to show; no traceback."""
    return visible_text(redact_text(_words(error)))


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error that left a command before any turn began."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _CLOSED_BY_READER:
        return Exit.BROKEN_PIPE
    if isinstance(error, BaseExceptionGroup):
        return max((exit_code_of(inner) for inner in error.exceptions), default=Exit.FAILED)
    if isinstance(error, LLMError):
        return Exit.FAILED
    # Everything the project raises on purpose before a turn runs is about the plan, its modules or a file of the user's.
    return Exit.USAGE if isinstance(error, AmplifierError | OSError) else Exit.FAILED


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(dict.fromkeys(_words(inner) for inner in error.exceptions))
    if isinstance(error, LLMError):
        return f"{error}{_advice(error)}"
    if isinstance(error, ModuleNotFoundError) and error.module_id is not None:
        suggestion = error.suggestion
        near = f"; {did_you_mean(suggestion)}" if suggestion and is_near(error.module_id, suggestion) else "."
        return (
            f"no module {error.module_id!r} is installed{near} `amplifier module list` shows what there is; "
            "`--debug` shows where it was looked for."
        )
    if isinstance(error, CommandError | MissingExtraError):
        return str(error)
    if isinstance(error, AmplifierError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename is not None else reason
    return f"unexpected {type(error).__name__}: {error} (run again with --debug to see where it happened)"


def _advice(error: LLMError) -> str:
    if isinstance(error, AuthenticationError):
        return "; check the provider's key (`amplifier doctor` tells which keys are set)"
    if isinstance(error, RateLimitError) and error.retry_after:
        return f"; the provider asks to wait {error.retry_after:g} s"
    if isinstance(error, ProviderUnavailableError) and error.retryable:
        return "; nothing is lost: `amplifier run --resume last` goes on from here"
    return ""
