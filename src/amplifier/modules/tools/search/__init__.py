"""tool-search: find text in files, and files by name, inside the allowed directories only.

`_grep` has the tool. It asks ripgrep which files may match, and runs the pattern in a process of its own, whose program is
`_matcher_process`; files are found and opened by the shared files `_glob` and `_paths`.
"""

from ._grep import GrepTool, mount

__all__ = ["GrepTool", "mount"]

__amplifier_module_type__ = "tool"
