"""The part of the file system that tools may see: roots, opening beneath them without races, walking, glob patterns."""

from ._beneath import Entry, entries_of, open_directory, open_file, open_file_in, open_parent, refuse_unless_regular
from ._glob_tool import GlobTool
from ._patterns import GlobPattern
from ._roots import WORKSPACE_CHECKS, Place, PlatformUnfit, Territory, Workspace
from ._walking import DEFAULT_IGNORED, Found, Walk

__all__ = [
    "DEFAULT_IGNORED",
    "WORKSPACE_CHECKS",
    "Entry",
    "Found",
    "GlobPattern",
    "GlobTool",
    "Place",
    "PlatformUnfit",
    "Territory",
    "Walk",
    "Workspace",
    "entries_of",
    "open_directory",
    "open_file",
    "open_file_in",
    "open_parent",
    "refuse_unless_regular",
]
