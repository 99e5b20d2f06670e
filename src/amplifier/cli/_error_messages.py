"""Turn exceptions into messages for people at a terminal."""

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
    """Return the failure and its remedy as text that is safe to show.

    Text of third-party errors may contain credentials and escape sequences.
    """
    return visible_text(redact_text(advise_on_alias(_raw_message(error), error)))


def traceback_text(error: BaseException) -> str:
    """Return the traceback as text that is safe to show.

    The text is indented, so that no line of an exception looks like a message of the command.
    """
    text = visible_text(redact_text("".join(traceback.format_exception(error))))
    return textwrap.indent(text.rstrip("\n"), "    ")


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error that ended a command before any turn started."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _CLOSED_BY_READER:
        return Exit.BROKEN_PIPE
    if isinstance(error, BaseExceptionGroup):
        return max((exit_code_of(inner) for inner in error.exceptions), default=Exit.FAILED)
    if isinstance(error, LLMError):
        return Exit.FAILED
    # Before a turn, expected errors concern the plan, its modules or a file of the user.
    return Exit.USAGE if isinstance(error, AmplifierError | OSError) else Exit.FAILED


def _raw_message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(dict.fromkeys(_raw_message(inner) for inner in error.exceptions))
    if isinstance(error, LLMError):
        return f"{error}{_advice(error)}"
    if isinstance(error, ModuleNotFoundError) and error.module_id is not None:
        advice = f"; {did_you_mean(error.suggestion)}" if error.suggestion else "."
        return (
            f"no module {error.module_id!r} is installed{advice} `amplifier module list` shows "
            "the installed ones; `--debug` shows where it was looked for."
        )
    if isinstance(error, BudgetExceeded):
        state = "is used up" if error.used >= error.limit else "does not suffice"
        kind = str(error.what).replace("_", " ")
        is_time = error.what == "seconds"
        needs = "" if is_time else f", and the next call needs at least {error.requested}"
        return (
            f"the budget {state}: {kind} {error.used} of {error.limit} used{needs}. "
            "Finished work is kept; continue with a larger budget "
            "(--max-cost, --max-total-tokens, or session.budget in the plan): "
            "amplifier run --resume last PROMPT"
        )
    if isinstance(error, CommandError | AmplifierError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename is not None else reason
    return f"unexpected {type(error).__name__}: {error} (run again with --debug for a traceback)"


def _advice(error: LLMError) -> str:
    if isinstance(error, AuthenticationError):
        return "; check the provider's key (`amplifier doctor` shows which keys are set)"
    if isinstance(error, RateLimitError) and error.retry_after:
        return f"; the provider asks to wait {error.retry_after:g} s"
    if isinstance(error, ProviderUnavailableError) and error.retryable:
        return "; nothing is lost: `amplifier run --resume last` continues from here"
    return ""
