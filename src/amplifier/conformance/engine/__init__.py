"""Runs an examination: the controller in the caller's process, the worker in its own."""
