"""The current call: set for a block, inherited by tasks and threads, None outside."""

from __future__ import annotations

import anyio
import anyio.to_thread
import attrs
import pytest

from amplifier.contracts import CurrentCall, call_scope, current_call


def call(call_id: str, session_id: str = "s") -> CurrentCall:
    return CurrentCall(
        kind="tool",
        session_id=session_id,
        turn_number=1,
        iteration=1,
        call_id=call_id,
        tool_name="look",
    )


def test_no_call_exists_outside_scope() -> None:
    assert current_call() is None
    with call_scope(call("a")) as entered:
        assert current_call() is entered
    assert current_call() is None


def test_scope_left_by_error_restores_outer_call() -> None:
    with call_scope(call("a")), pytest.raises(RuntimeError), call_scope(call("b")):
        raise RuntimeError
    assert current_call() is None


def test_nested_call_has_parent() -> None:
    with call_scope(call("a")) as outer, call_scope(call("b", session_id="child")) as inner:
        assert inner.parent is outer
        assert (inner.call_id, inner.session_id) == ("b", "child")


def test_call_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        call("a").call_id = "b"  # type: ignore[misc]


async def test_tasks_and_threads_inherit_call() -> None:
    seen: list[CurrentCall | None] = []

    async def look() -> None:
        seen.append(current_call())
        seen.append(await anyio.to_thread.run_sync(current_call))

    with call_scope(call("a")) as entered:
        async with anyio.create_task_group() as group:
            group.start_soon(look)
    assert seen == [entered, entered]
    assert current_call() is None
