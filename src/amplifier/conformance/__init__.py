"""Is this a good module? The clauses of the contracts as checks, and strategies and properties for module authors."""

from ._report import ClauseOutcome, Finding, Report
from ._run import check_module

__all__ = ["ClauseOutcome", "Finding", "Report", "check_module"]
