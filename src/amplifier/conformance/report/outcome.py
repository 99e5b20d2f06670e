"""What became of the clauses of a contract: findings and outcomes, as plain data with a stable JSON form."""

from __future__ import annotations

from typing import Any, Literal

from attrs import Factory, frozen

Status = Literal["kept", "broken", "not_applicable", "not_checked"]

STATUS_WORDS: dict[Status, str] = {
    "kept": "kept",
    "broken": "broken",
    "not_applicable": "not applicable",
    "not_checked": "not examined",
}
"""The words for each status in texts for people."""


@frozen(kw_only=True)
class Finding:
    """One broken promise, with everything an author needs to reproduce and to fix it.

    Attributes:
        clause: The id of the clause.
        level: ``required`` or ``recommended``.
        what: What happened, against what was promised.
        check: The check that saw it.
        backend: Where; None when nothing was run.
        input: The smallest input that shows it, as JSON values; None if there is none.
        cancelled_at: The await at which the call was cancelled, ``file:line function``.
        location: Where in the module to look, ``file:line``; the file is relative to the module's folder or project.
        file: The absolute path of that file, if it was found.
        hint: How to fix it.
        reproduce: The command that reproduces exactly this finding.
    """

    clause: str
    level: str
    what: str
    check: str
    backend: str | None = None
    input: Any = None
    cancelled_at: str | None = None
    location: str | None = None
    file: str | None = None
    hint: str = ""
    reproduce: str = ""

    @property
    def line(self) -> int | None:
        """The line of the location; None if it names a file only."""
        _, _, number = (self.location or "").rpartition(":")
        return int(number) if number.isascii() and number.isdigit() else None


@frozen(kw_only=True)
class ClauseOutcome:
    """What became of one clause.

    Attributes:
        status: ``kept`` as far as was examined; ``broken``; ``not_applicable`` to this module; ``not_checked`` when it
            was not examined, and the notes of the report state why.
        how: How it was examined.
        backends: Where; empty when that took no running.
    """

    id: str
    level: str
    text: str
    law: str | None
    status: Status
    how: list[str] = Factory(list)
    backends: list[str] = Factory(list)
    findings: list[Finding] = Factory(list)
