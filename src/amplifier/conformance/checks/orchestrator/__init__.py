"""Checks of the orchestrator contract."""
