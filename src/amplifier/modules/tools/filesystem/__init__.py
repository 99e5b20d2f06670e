"""tool-filesystem: read, write, edit, list and find files, inside the allowed directories only.

The tools are in `_read_tools` and `_write_tools`; how a path is opened without races is in the shared file `_paths`.
"""

from ._read_tools import ListDirectoryTool, ReadFileTool
from ._write_tools import EditFileTool, WriteFileTool, mount

__all__ = ["EditFileTool", "ListDirectoryTool", "ReadFileTool", "WriteFileTool", "mount"]

__amplifier_module_type__ = "tool"
