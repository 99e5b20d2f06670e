"""Handlers of events: registration, dispatch, and the merging and carrying out of results."""
