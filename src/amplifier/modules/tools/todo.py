"""tool-todo: the model's list of what it still has to do, one per session.

The list is ``coordinator.session_state["todos"]``, and the same list is the coordinator's attribute ``todo_state``, where
published hooks look for it. It lives and ends with the session.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from amplifier.contracts import Coordinator
from amplifier.models import ToolResult

from .._shared.configuration import list_each, read_options
from .._shared.failure import ToolFailure, shown
from ._base import BuiltinTool, NoOptions, characters, option, tool_input, word

__all__ = ["TodoTool", "mount"]

__amplifier_module_type__ = "tool"

_KEY = "todos"
_STATUSES = ("pending", "in_progress", "completed")
_MOST = 100
_TODO = tool_input(
    content=option(characters(1, 1000), doc="What to do."),
    activeForm=option(characters(1, 1000), None, "The same in progress: 'Running the tests'."),
    status=option(word(*_STATUSES), doc="How far it is."),
)
_TODOS = attrs.evolve(
    list_each("todos", _TODO),
    expected=f"a list of at most {_MOST} todos",
    accepts=lambda value: isinstance(value, list) and len(value) <= _MOST,
    schema={"type": "array", "maxItems": _MOST, "items": _TODO.schema},
)


class TodoTool(BuiltinTool):
    """Keeps a list of todos; every change gives the whole list, so that nothing is changed by half.

    Args:
        coordinator: Its session state holds the list.
    """

    _name = "todo"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Keep a list of what is to be done. create starts a new list, update replaces it by the whole list as it is now, "
        "list only shows it. Each todo has content (what to do), activeForm (what to show while it is being done) and "
        "status: pending, in_progress or completed. At most one may be in_progress."
    )
    _input = tool_input(
        action=option(word("create", "update", "list"), doc="What to do with the list."),
        todos=option(
            _TODOS,
            None,
            "The whole list, in order, for create and update; without it the list stays as it is.",
        ),
    )

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        todos: list[dict[str, str]] = self._coordinator.session_state.setdefault(_KEY, [])
        if values["action"] != "list" and "todos" in values:
            # No await between the check and the change, and one assignment: no reader sees half a list.
            todos[:] = _accepted(values["todos"])
        counts = {status: sum(todo["status"] == status for todo in todos) for status in _STATUSES}
        return ToolResult(
            output={"todos": [dict(todo) for todo in todos], "count": len(todos), **counts}
        )


def _accepted(given: list[dict[str, str]]) -> list[dict[str, str]]:
    """The todos with the form to show filled in.

    Raises:
        ToolFailure: They break a rule that the schema cannot express.
    """
    active = [shown(todo["content"], 80) for todo in given if todo["status"] == "in_progress"]
    if len(active) > 1:
        found = ", ".join(map(repr, active[:5]))
        raise ToolFailure(
            "TooManyInProgress",
            f"at most one todo may be in_progress, found {len(active)}: {found}",
        )
    return [
        {
            key: shown(text, 2000)
            for key, text in {**todo, "activeForm": todo.get("activeForm", todo["content"])}.items()
        }
        for todo in given
    ]


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the tool."""
    read_options(NoOptions, "tool-todo", config)
    todos = coordinator.session_state.setdefault(_KEY, [])
    coordinator.todo_state = todos  # type: ignore[attr-defined]  # free attributes are for modules; see Coordinator
    await coordinator.mount("tools", TodoTool(coordinator))
