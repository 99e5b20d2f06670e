"""The checks, one file for each contract; importing this package registers them all."""

from . import (
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

__all__: list[str] = [
    "_context",
    "_context_keeping",
    "_context_views",
    "_hook",
    "_mount",
    "_orchestrator",
    "_orchestrator_limits",
    "_provider",
    "_provider_conduct",
    "_provider_wire",
    "_resolver",
    "_secrets",
    "_static",
    "_tool",
]
