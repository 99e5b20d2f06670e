"""Checks of the module source contract."""
