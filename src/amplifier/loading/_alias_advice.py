"""Advice for errors about a missing ``amplifier_core``, the alias under which published modules import this kernel.

A process of this package makes the name importable by itself. A process that others start may lack it, above all one that is
given a PYTHONPATH of its own; where its error reaches us, the message names the command that helps.
"""

from __future__ import annotations

from typing import Final

ENABLE_ALIAS: Final = "run `python -m amplifier.compat enable` once for all processes of this environment"

_MISSING: Final = "No module named 'amplifier_core'"


def lacks_alias(text: str, error: BaseException | None = None) -> bool:
    """Whether an error is about a missing ``amplifier_core``.

    Args:
        text: What the error reports.
        error: The error itself; one about a process may carry what that process wrote to its standard error.
    """
    written = getattr(error, "stderr", None)
    if isinstance(written, bytes):
        written = written.decode(errors="replace")
    return _MISSING in text or (isinstance(written, str) and _MISSING in written)


def advise_on_alias(text: str, error: BaseException | None = None) -> str:
    """An error's text, with the advice if it is about a missing ``amplifier_core`` and does not have it yet."""
    if ENABLE_ALIAS in text or not lacks_alias(text, error):
        return text
    return f"{text}; a process without the alias cannot import 'amplifier_core': {ENABLE_ALIAS}"
