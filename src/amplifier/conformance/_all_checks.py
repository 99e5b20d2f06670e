"""Imports every file of checks, which registers them. A new file has to be named here; a test looks after it."""

from .checks import (
    _context,
    _context_keeping,
    _context_views,
    _hook,
    _mount,
    _orchestrator,
    _orchestrator_limits,
    _provider,
    _provider_conduct,
    _provider_wire,
    _resolver,
    _secrets,
    _static,
    _tool,
)

FILES = (
    _context,
    _context_keeping,
    _context_views,
    _hook,
    _mount,
    _orchestrator,
    _orchestrator_limits,
    _provider,
    _provider_conduct,
    _provider_wire,
    _resolver,
    _secrets,
    _static,
    _tool,
)
"""The files, so that nobody takes the import for a mistake."""
