"""What the published kernel lets pass: everything that is no Exception, but for a cancellation that nothing requested."""

from __future__ import annotations

from amplifier.contracts._containment import is_cancellation_type, is_real_cancellation
from amplifier.errors import SpuriousCancellation


def published_failure(exc: BaseException) -> Exception:
    """Return the failure of third-party code that ``exc`` amounts to, as sessions made through the alias see it.

    Raises:
        BaseException: ``exc`` itself when it is a real cancellation, Ctrl-C, exit or any other BaseException.
    """
    if isinstance(exc, Exception):
        return exc
    if is_cancellation_type(exc) and not is_real_cancellation(exc):
        return SpuriousCancellation(f"raised {type(exc).__name__} although nothing was cancelled")
    raise exc
