"""The checks, by type of module. Importing this package registers them in their order."""

# ruff: noqa: F401, I001 — importing a file registers its checks

from . import context
from .every_module import cancellation, differential, exposure, lifecycle, plain_calls, reentrancy
from . import hook, orchestrator, provider, resolver, tool
