"""tool-bash: run a command in a shell, and have nothing of it left when the call is over.

`_tool` is the tool, `_command` runs one command in a worker thread and keeps a bounded part of its output. `_confinement` decides how
a command is confined and calls bubblewrap, `_places` to which files, `_own_files` which of them it must not change or create, and
`_seccomp` which system calls it gets.
"""

from ._confinement import sandbox_here
from ._tool import BashTool, mount

__all__ = ["BashTool", "mount", "sandbox_here"]

__amplifier_module_type__ = "tool"
