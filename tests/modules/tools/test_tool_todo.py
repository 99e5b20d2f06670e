"""tool-todo: one list per session, changed as a whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.modules.tools import todo as tool_todo
from tests.modules.tools.test_tool_filesystem import Desk

FIRST = {"content": "read", "status": "in_progress", "activeForm": "Reading"}
SECOND = {"content": "write", "status": "pending"}


async def opened() -> Desk:
    return await Desk.open(None, tool_todo)


async def test_list_is_created_shown_and_replaced():
    desk = await opened()
    assert (await desk.get("todo", action="list"))["todos"] == []
    output = await desk.get("todo", action="create", todos=[FIRST, SECOND])
    assert output == {
        "todos": [FIRST, {**SECOND, "activeForm": "write"}],
        "count": 2,
        "pending": 1,
        "in_progress": 1,
        "completed": 0,
    }
    assert await desk.get("todo", action="list", todos=[]) == output
    done = await desk.get("todo", action="update", todos=[{**FIRST, "status": "completed"}])
    assert (done["completed"], done["count"]) == (1, 1)
    assert (await desk.get("todo", action="update"))["count"] == 1
    assert (await desk.get("todo", action="create", todos=[]))["count"] == 0


async def test_two_items_in_progress_are_refused():
    desk = await opened()
    await desk.get("todo", action="create", todos=[FIRST])
    kind, message = await desk.fail(
        "todo", action="update", todos=[FIRST, {**FIRST, "content": "x"}]
    )
    assert kind == "TooManyInProgress"
    assert message == "at most one todo may be in_progress, found 2: 'read', 'x'"
    assert (await desk.get("todo", action="list"))["todos"] == [FIRST]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "action: is missing; expected one of 'create', 'update', 'list'"),
        ({"action": "delete"}, "action: expected one of 'create', 'update', 'list', got 'delete'"),
        (
            {"action": "create", "todos": "x"},
            "todos: expected a list of at most 100 todos, got 'x'",
        ),
        (
            {"action": "create", "todos": [{}]},
            "todos[0].content: is missing; expected text; todos[0].status: is missing",
        ),
        (
            {"action": "create", "todos": [{**SECOND, "content": ""}]},
            "todos[0].content: expected at least 1 characters",
        ),
        ({"action": "create", "todos": [{**SECOND, "id": 1}]}, "todos[0].id: unknown key"),
        (
            {"action": "create", "todos": [{**SECOND, "status": "done"}]},
            "todos[0].status: expected one of 'pending'",
        ),
        (
            {"action": "list", "todos": [SECOND] * 101},
            "todos: expected a list of at most 100 todos",
        ),
        ({"action": "create", "todos": [None] * 50}, "and 45 more problems"),
    ],
)
async def test_malformed_list_is_refused(given, problem):
    desk = await opened()
    kind, message = await desk.fail("todo", **given)
    assert kind == "InvalidInput"
    assert problem in message
    assert desk.coordinator.session_state["todos"] == []


async def test_list_belongs_to_session():
    """Hooks find it in its place."""
    one, other = await opened(), await opened()
    await one.get("todo", action="create", todos=[SECOND])
    assert one.coordinator.session_state["todos"][0]["content"] == "write"
    published: Any = one.coordinator
    assert published.todo_state is one.coordinator.session_state["todos"]
    assert (await other.get("todo", action="list"))["count"] == 0
