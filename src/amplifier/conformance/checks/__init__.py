"""The checks, by type of module. Importing this package registers all of them, in the order in which they run."""

# ruff: noqa: F401, I001 — importing a file registers its checks

from .context import compaction, storage
from .every_module import at_once, cancellation, declaration, differential, exposure, lifecycle
from . import hook, orchestrator
from .provider import answers, behaviour, wire
from . import resolver
from .tool import calls, schema_accuracy
