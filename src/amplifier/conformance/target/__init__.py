"""Locate, import and use the module under examination, and read its source."""
