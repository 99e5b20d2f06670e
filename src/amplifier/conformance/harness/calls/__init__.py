"""Calls of a module's code: with a deadline, in series, concurrent, cancelled."""
