"""The checks, by type of module. Importing this package registers all of them, in the order in which they run."""

# ruff: noqa: F401, I001 — importing a file registers its checks

from . import context
from .every_module import cancellation, differential, exposure, lifecycle, plain_calls, reentrancy
from . import hook, orchestrator, provider, resolver, tool
