"""Is this a good module? The clauses of the contracts as checks, and strategies and properties for module authors."""

__all__ = []
