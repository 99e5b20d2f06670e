"""The checks, by type of module. Importing this package registers all of them."""

# ruff: noqa: F401 — importing a file registers its checks

from .context import compaction, durability, storage
from .every_module import cancellation, declaration, exposure, lifecycle, sharing
from .hook import handlers
from .orchestrator import limits, turns
from .provider import answers, behaviour, wire
from .resolver import resolving
from .tool import calls, cross_talk, schema_accuracy
