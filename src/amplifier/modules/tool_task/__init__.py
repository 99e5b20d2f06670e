"""tool-task: hand a task to an agent of the plan, which works on it in a child session.

`_tool` is the tool, `_agents` reads the plan's agents, `_child_sessions` opens, runs and closes one child, `_token_usage` counts the
tokens of children and their children.
"""

from ._mount import mount
from ._tool import TaskTool

__all__ = ["TaskTool", "mount"]

__amplifier_module_type__ = "tool"
