"""The part of the file system that tools may see: roots, opening beneath them without races, walking, glob patterns."""

from ._beneath import Entry, entries_of, open_directory, open_file, open_file_in, open_parent, refuse_unless_regular
from ._glob_tool import GlobTool
from ._patterns import GlobPattern
from ._roots import Place, PlatformUnfit, Territory, Workspace
from ._walking import DEFAULT_IGNORED, Found, Walk, directory_names

__all__ = [
    "DEFAULT_IGNORED",
    "Entry",
    "Found",
    "GlobPattern",
    "GlobTool",
    "Place",
    "PlatformUnfit",
    "Territory",
    "Walk",
    "Workspace",
    "directory_names",
    "entries_of",
    "open_directory",
    "open_file",
    "open_file_in",
    "open_parent",
    "refuse_unless_regular",
]
