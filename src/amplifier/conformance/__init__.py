"""The conformance kit: checks of modules against the contracts, for authors and their suites."""

from amplifier.conformance.engine.controller import check_module
from amplifier.conformance.report import ClauseOutcome, Finding, Report

__all__ = ["ClauseOutcome", "Finding", "Report", "check_module"]
