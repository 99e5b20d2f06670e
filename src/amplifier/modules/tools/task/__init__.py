"""tool-task: hand a task to an agent of the plan, which works on it in a child session.

`_tool` is the tool, `_child_sessions` reads the plan's agents, opens, runs and closes one child and counts its tokens.
"""

from ._tool import TaskTool, mount

__all__ = ["TaskTool", "mount"]

__amplifier_module_type__ = "tool"
