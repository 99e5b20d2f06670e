"""Imports every file of checks, which registers them. A new file has to be named here; a test looks after it."""

from .context import compaction as _context_views
from .context import durability as _context_keeping
from .context import storage as _context
from .every_module import declaration as _static
from .every_module import lifecycle as _mount
from .every_module import secret_exposure as _secrets
from .hook import handlers as _hook
from .orchestrator import limits as _orchestrator_limits
from .orchestrator import turns as _orchestrator
from .provider import answers as _provider
from .provider import behaviour as _provider_conduct
from .provider import wire as _provider_wire
from .resolver import resolving as _resolver
from .tool import calls as _tool

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
