"""Imports every file with checks, which registers them. A test finds a file that is not imported here."""

from .context import compaction, durability, storage
from .every_module import declaration, lifecycle, secret_exposure
from .hook import handlers
from .orchestrator import limits, turns
from .provider import answers, behaviour, wire
from .resolver import resolving
from .tool import calls

FILES = (
    compaction, durability, storage, declaration, lifecycle, secret_exposure, handlers, limits, turns, answers, behaviour,
    wire, resolving, calls,
)  # fmt: skip
