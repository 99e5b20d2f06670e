"""The conformance kit: checks modules against the clauses of the contracts; strategies and pytest suites for authors."""

from amplifier.conformance.engine.controller import check_module
from amplifier.conformance.report import ClauseOutcome, Finding, Report

__all__ = ["ClauseOutcome", "Finding", "Report", "check_module"]
