"""Internals shared by several packages. They may change at any time."""
