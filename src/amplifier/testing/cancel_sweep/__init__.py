"""Cancels a scenario at each of its suspension points."""
