"""Checks of the clauses that every module has to keep."""
