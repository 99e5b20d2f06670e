"""Imports every file with checks, which registers them."""

# ruff: noqa: F401 — importing a file is all that it takes

from .context import compaction, durability, storage
from .every_module import (
    both_backends,
    child_processes,
    declaration,
    failing_mounts,
    lifecycle,
    loop_blocking,
    secret_exposure,
    session_isolation,
    torn_files,
)
from .hook import cross_talk as _hook_cross_talk
from .hook import handlers, session_series
from .orchestrator import limits, turns
from .provider import answers, behaviour, wire
from .resolver import resolving
from .tool import calls, cross_talk, schema_accuracy, torn_state
