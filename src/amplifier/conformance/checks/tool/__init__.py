"""Checks of the tool contract."""
