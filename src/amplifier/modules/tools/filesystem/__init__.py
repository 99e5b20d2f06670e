"""tool-filesystem: read, write, edit, list and find files, inside the allowed directories only."""

from ._read_tools import ListDirectoryTool, ReadFileTool
from ._write_tools import EditFileTool, WriteFileTool, mount

__all__ = ["EditFileTool", "ListDirectoryTool", "ReadFileTool", "WriteFileTool", "mount"]

__amplifier_module_type__ = "tool"
