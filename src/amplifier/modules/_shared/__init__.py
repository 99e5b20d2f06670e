"""Shared parts of built-in modules of every kind."""
