"""tool-bash: run a command in a shell, and leave no process of it behind."""

from ._confinement import sandbox_here
from ._tool import BashTool, mount

__all__ = ["BashTool", "mount", "sandbox_here"]

__amplifier_module_type__ = "tool"
