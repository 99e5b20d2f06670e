"""Access to files below allowed roots only: opening without races, walking, glob patterns."""

from .glob_patterns import GlobPattern
from .glob_tool import GlobTool
from .open_beneath import Entry, entries_of, open_directory, open_file, open_file_in, open_parent, refuse_unless_regular
from .tree_walk import DEFAULT_IGNORED, Found, Walk, directory_names
from .workspace import AccessRoots, ConfinedPath, Workspace

__all__ = [
    "DEFAULT_IGNORED",
    "AccessRoots",
    "ConfinedPath",
    "Entry",
    "Found",
    "GlobPattern",
    "GlobTool",
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
