"""The module tool-bash, which runs a command in a shell and leaves none of its processes behind."""

from ._confinement import sandbox_here
from ._tool import BashTool, mount

__all__ = ["BashTool", "mount", "sandbox_here"]

__amplifier_module_type__ = "tool"
