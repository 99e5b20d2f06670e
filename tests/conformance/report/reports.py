"""Reports made by hand, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from amplifier.conformance import ClauseOutcome, Finding, Report
from amplifier.contracts import clauses_for

HOSTILE = "</title></style><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\x1b[31m\u202e%0A::error::x\n::error::injected"
"""A text that a terminal, a page, an XML file or a workflow runner would obey if it were not made inert."""


def finding(clause: str = "T5", **fields: Any) -> Finding:
    """A finding with the fields that a test does not care about filled in."""
    usual: dict[str, Any] = {
        "level": "required",
        "what": f"{clause} does not hold",
        "check": "tool.answers_inputs",
        "backend": "asyncio",
        "hint": f"fix {clause}",
        "reproduce": f"amplifier module validate x --only {clause}",
    }
    return Finding(clause=clause, **{**usual, **fields})


def report(*findings: Finding, **fields: Any) -> Report:
    """A report on a tool with these findings; clauses without any are kept, those in ``missed`` not examined."""
    missed = fields.pop("missed", ())
    outcomes = []
    for clause in clauses_for("tool"):
        own = [found for found in findings if found.clause == clause.id]
        status: Any = "broken" if own else "not_checked" if clause.id in missed else "kept"
        outcomes.append(
            ClauseOutcome(
                id=clause.id,
                level=clause.level,
                text=clause.text,
                law=clause.law,
                status=status,
                findings=own,
            )
        )
    verdict = "violations" if any(found.level == "required" for found in findings) else "conforms"
    usual: dict[str, Any] = {
        "module": "tool-x",
        "type": "tool",
        "source": "x.py",
        "verdict": verdict,
        "profile": "quick",
        "seed": 0,
        "backends": ["asyncio", "trio"],
        "seconds": 1.25,
    }
    return Report(clauses=outcomes, **{**usual, **fields})
