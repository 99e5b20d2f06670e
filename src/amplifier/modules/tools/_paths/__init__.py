"""Access to files below allowed roots only: opening without races, walking, glob patterns."""

from .glob_tool import DEFAULT_IGNORED, Found, GlobPattern, GlobTool, Walk, directory_names
from .open_beneath import Entry, entries_of, open_directory, open_file, open_file_in, open_parent, refuse_unless_regular
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
