"""Modules of a plan that could not be mounted: a failed one may be a hook that was to ask for permission."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError
from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession, ModuleFailure

__all__ = ["check_failures", "failure_reason", "list_failures"]

_REMEDY = "Correct the plan or take them out of it; with `strict: false` in its section `session` it runs without them."


def check_failures(session: AmplifierSession) -> list[str]:
    """Refuse a session with failed modules; returns warnings if its plan has ``strict: false`` in its section ``session``.

    Raises:
        CommandError: A module of the plan cannot be used.
    """
    settings = session.config.get("session")
    if isinstance(settings, dict) and settings.get("strict") is False:
        return [f"{each.module_id} is not available: {failure_reason(each.error)}" for each in session.failures]
    if session.failures:
        count = len(session.failures)
        counted = "1 module" if count == 1 else f"{count} modules"
        lines = [f"{counted} of the plan cannot be used, so nothing was begun:", *list_failures(session.failures)]
        raise CommandError("\n".join([*lines, _REMEDY]))
    return []


def list_failures(failures: Sequence[ModuleFailure]) -> list[str]:
    """One line for each."""
    return [f"  {failure.module_id}: {failure_reason(failure.error)}" for failure in failures]


def failure_reason(error: BaseException) -> str:
    """Why a module failed; an `AmplifierError` that caused the error explains it better."""
    return error_message(error.__cause__ if isinstance(error.__cause__, AmplifierError) else error)
