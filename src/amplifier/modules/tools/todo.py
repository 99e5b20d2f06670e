"""tool-todo: the model's list of tasks, one per session."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from amplifier.contracts import Coordinator
from amplifier.models import ToolResult

from .._shared.configuration import list_each, read_options
from .._shared.failure import ToolFailure, shown
from ._base import BuiltinTool, NoOptions, characters, one_of, option, tool_input

__all__ = ["TodoTool", "mount"]

__amplifier_module_type__ = "tool"

_KEY = "todos"
_STATUSES = ("pending", "in_progress", "completed")
_MAX_TODOS = 100
_TODO = tool_input(
    content=option(characters(1, 1000), doc="The task: 'Run the tests'."),
    activeForm=option(characters(1, 1000), None, "The task in progress: 'Running the tests'."),
    status=option(one_of(*_STATUSES), doc="The state of the task."),
)
_TODOS = attrs.evolve(
    list_each("todos", _TODO),
    expected=f"a list of at most {_MAX_TODOS} todos",
    accepts=lambda value: isinstance(value, list) and len(value) <= _MAX_TODOS,
    schema={"type": "array", "maxItems": _MAX_TODOS, "items": _TODO.schema},
)


class TodoTool(BuiltinTool):
    """The tool that keeps a list of todos. Every change replaces the whole list.

    Args:
        coordinator: The coordinator of the session. Its session state holds the list.
    """

    _name = "todo"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Keep a list of tasks. create starts a new list, update replaces it with the whole list as "
        "it is now, list only shows it. Each todo has content (the task), activeForm (the text to "
        "show while it is in progress) and status: pending, in_progress or completed. At most one "
        "may be in_progress."
    )
    _input = tool_input(
        action=option(one_of("create", "update", "list"), doc="The change of the list, or list."),
        todos=option(
            _TODOS,
            None,
            "The whole list, in order, for create and update. Without it the list is not changed.",
        ),
    )

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        todos: list[dict[str, str]] = self._coordinator.session_state.setdefault(_KEY, [])
        if values["action"] != "list" and "todos" in values:
            # The list changes in one assignment after the check, without an await, so that no
            # reader gets half a list.
            todos[:] = _checked(values["todos"])
        counts = {status: sum(todo["status"] == status for todo in todos) for status in _STATUSES}
        return ToolResult(
            output={"todos": [dict(todo) for todo in todos], "count": len(todos), **counts}
        )


def _checked(todos: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the todos with ``activeForm`` filled in.

    Raises:
        ToolFailure: The todos break a rule that the schema can't express.
    """
    active = [shown(todo["content"], 80) for todo in todos if todo["status"] == "in_progress"]
    if len(active) > 1:
        contents = ", ".join(map(repr, active[:5]))
        raise ToolFailure(
            "TooManyInProgress",
            f"at most one todo may be in_progress, found {len(active)}: {contents}",
        )
    return [
        {
            key: shown(text, 2000)
            for key, text in {**todo, "activeForm": todo.get("activeForm", todo["content"])}.items()
        }
        for todo in todos
    ]


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the tool."""
    read_options(NoOptions, "tool-todo", config)
    todos = coordinator.session_state.setdefault(_KEY, [])
    # Published hooks read the list from this attribute. Modules may add attributes.
    coordinator.todo_state = todos  # type: ignore[attr-defined]
    await coordinator.mount("tools", TodoTool(coordinator))
