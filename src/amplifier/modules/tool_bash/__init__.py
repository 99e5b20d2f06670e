"""tool-bash: run a command in a shell, and have nothing of it left when the call is over.

`_tool` is the tool, `_command` runs one command in a worker thread, `_output_reader` reads its output, `_capture` keeps a bounded part of its output, `_environment` makes the environment of a command.
`_confinement` decides how a command is confined, `_places` to which files, `_bubblewrap` how bubblewrap is called; `_hidden_environment` protects this process.
"""

from ._confinement import sandbox_here
from ._mount import mount
from ._tool import BashTool

__all__ = ["BashTool", "mount", "sandbox_here"]

__amplifier_module_type__ = "tool"
