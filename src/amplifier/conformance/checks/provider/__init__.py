"""Checks of the provider contract."""
