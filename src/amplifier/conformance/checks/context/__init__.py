"""Checks of the context contract."""
