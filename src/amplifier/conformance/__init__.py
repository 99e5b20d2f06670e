"""Is this a good module? The clauses of the contracts as checks, and strategies and properties for module authors."""

from amplifier.conformance.engine.controller import check_module
from amplifier.conformance.report.model import ClauseOutcome, Finding, Report

__all__ = ["ClauseOutcome", "Finding", "Report", "check_module"]
