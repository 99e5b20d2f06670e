"""From an exception to the message a person at a terminal gets.

The text of third-party errors may carry credentials and escape sequences, so every message is scrubbed here.
"""

from __future__ import annotations

import errno
import textwrap
import traceback

from amplifier._internal.json import redact_text, visible_text
from amplifier._internal.spelling import did_you_mean
from amplifier.errors import (
    AmplifierError,
    AuthenticationError,
    BudgetExceeded,
    LLMError,
    ModuleNotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)
from amplifier.loading.importing import advise_on_alias

from ._exit_codes import CommandError, Exit

_CLOSED_BY_READER = frozenset({errno.EPIPE, errno.ESHUTDOWN})


def error_message(error: BaseException) -> str:
    """What went wrong and what to do, as text that is safe to show; no traceback."""
    return visible_text(redact_text(advise_on_alias(_raw_message(error), error)))


def traceback_text(error: BaseException) -> str:
    """The traceback as text that is safe to show, indented: no line of an exception's text looks like a line of ours."""
    text = visible_text(redact_text("".join(traceback.format_exception(error))))
    return textwrap.indent(text.rstrip("\n"), "    ")


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


def _raw_message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(dict.fromkeys(_raw_message(inner) for inner in error.exceptions))
    if isinstance(error, LLMError):
        return f"{error}{_advice(error)}"
    if isinstance(error, ModuleNotFoundError) and error.module_id is not None:
        advice = f"; {did_you_mean(error.suggestion)}" if error.suggestion else "."
        return (
            f"no module {error.module_id!r} is installed{advice} `amplifier module list` shows what there is; "
            "`--debug` shows where it was looked for."
        )
    if isinstance(error, BudgetExceeded):
        needs = (
            ""
            if error.what == "seconds"
            else f", and the next call needs at least {error.requested}"
        )
        return (
            f"the budget {'is used up' if error.used >= error.limit else 'does not suffice'}: {str(error.what).replace('_', ' ')} "
            f"{error.used} of {error.limit} used{needs}. What was done is kept; "
            "go on with a larger budget (--max-cost, --max-total-tokens, or session.budget in the plan): "
            "amplifier run --resume last PROMPT"
        )
    if isinstance(error, CommandError | AmplifierError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename is not None else reason
    return f"unexpected {type(error).__name__}: {error} (run again with --debug to see where it happened)"


def _advice(error: LLMError) -> str:
    if isinstance(error, AuthenticationError):
        return "; check the provider's key (`amplifier doctor` shows which keys are set)"
    if isinstance(error, RateLimitError) and error.retry_after:
        return f"; the provider asks to wait {error.retry_after:g} s"
    if isinstance(error, ProviderUnavailableError) and error.retryable:
        return "; nothing is lost: `amplifier run --resume last` goes on from here"
    return ""
