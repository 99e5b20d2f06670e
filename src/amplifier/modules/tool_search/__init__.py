"""tool-search: find text in files, and files by name, inside the allowed directories only.

`_grep_tool` is the tool, `_search` the search itself, `_matcher` runs the pattern in a process of its own and
`_ripgrep` asks ripgrep which files may match; files are found and opened by the shared package `_confined_paths`.
"""

from ._grep_tool import GrepTool
from ._mount import mount

__all__ = ["GrepTool", "mount"]

__amplifier_module_type__ = "tool"
