"""Why a module could not be used, as the code that events carry."""

from __future__ import annotations

from amplifier.errors import DeadlineExceeded, ModuleLoadError, ModuleNotFoundError


def module_failure_reason(exc: BaseException) -> str:
    """Return the reason code of one of our own errors; foreign errors are ``unknown``, whatever they carry."""
    if isinstance(exc, ModuleLoadError):
        return exc.reason_code
    if isinstance(exc, ModuleNotFoundError):
        return "missing_source"
    return "deadline" if isinstance(exc, DeadlineExceeded) else "unknown"
