"""tool-bash: run a command in a shell, and have nothing of it left when the call is over.

`_tool` is the tool, `_command` runs one command in a worker thread and keeps a bounded part of its output. `_confinement` decides how
a command is confined, `_places` to which files, `_own_files` which of them it must not change, `_placeholders` keeps missing ones
from being created, `_seccomp` which system calls it gets, `_bubblewrap` how bubblewrap is called; `_mount` protects this process.
"""

from ._confinement import sandbox_here
from ._mount import mount
from ._tool import BashTool

__all__ = ["BashTool", "mount", "sandbox_here"]

__amplifier_module_type__ = "tool"
