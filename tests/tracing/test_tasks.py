"""The task tree names every task, its session, its module, its deadline and the line it waits at."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import AmplifierSession, HookResult, ToolResult
from amplifier.models import from_json, to_json
from amplifier.tracing import CodeLine, TaskReport, TaskTree, task_tree
from tests._support.small_agent import Turn, agent, mounting


class Waiting:
    """A tool that waits for ever."""

    name = "wait"
    description = "Waits."

    async def execute(self, input: Any) -> ToolResult:  # noqa: A002  # the contract's name
        await self._deeper()
        return ToolResult(output="never")

    async def _deeper(self) -> None:
        await anyio.sleep_forever()


async def call_all_tools(turn: Turn) -> str:
    async with anyio.create_task_group() as group:
        for tool in turn.tools.values():
            group.start_soon(tool.execute, {})
    return "done"


async def call_first_tool(turn: Turn) -> str:
    await turn.tools["wait"].execute({})
    return "done"


async def tree_during(
    session: AmplifierSession, *, beside: Callable[[], Any] | None = None, **options: Any
) -> TaskTree:
    """Open the session, run a turn, wait until everybody waits, and look."""
    trees: list[TaskTree] = []

    async def look() -> None:
        await anyio.wait_all_tasks_blocked()
        trees.append(task_tree())
        group.cancel_scope.cancel()

    async with session, anyio.create_task_group() as group:
        group.start_soon(look, name="the one who looks")
        if beside is not None:
            group.start_soon(beside)
        await session.execute("go", **options)
    return trees[0]


def the_one_at(tree: TaskTree, function: str) -> TaskReport:
    (found,) = [
        task for task in tree.tasks if task.at is not None and task.at.function.endswith(function)
    ]
    return found


def line_in(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + index for index, line in enumerate(lines) if text in line)


async def test_hanging_tool_has_module_and_await():
    tree = await tree_during(
        agent(call_all_tools, tools={"tool-wait": mounting(Waiting())}, session_id="s1")
    )
    task = the_one_at(tree, "Waiting._deeper")
    assert (task.session_id, task.module, task.state) == ("s1", "tool-wait", "waiting")
    assert task.at is not None
    assert task.at.file == __file__
    assert task.at.line == line_in(Waiting, "sleep_forever")
    assert task.at.code == "await anyio.sleep_forever()"
    assert task.waits_in == "anyio sleep_forever"
    assert [line.function for line in task.awaits] == ["Waiting.execute", "Waiting._deeper"]


async def test_chain_names_module_of_each_line():
    tree = await tree_during(agent(call_first_tool, tools={"tool-wait": mounting(Waiting())}))
    task = the_one_at(tree, "Waiting._deeper")
    shown = {line.function: line.module for line in task.awaits}
    assert shown["Loop.execute"] == shown["call_first_tool"] == "loop-small"
    assert shown["Turn.run"] is None  # the kernel is no module
    assert shown["Waiting.execute"] == shown["Waiting._deeper"] == "tool-wait"


async def test_tool_is_below_turn_beside_application():
    async def background_of_the_application() -> None:
        await anyio.sleep_forever()

    session = agent(call_all_tools, tools={"tool-wait": mounting(Waiting())})
    tree = await tree_during(session, beside=background_of_the_application)
    by_number = {task.number: task for task in tree.tasks}
    tool = the_one_at(tree, "Waiting._deeper")
    assert tool.parent is not None
    assert by_number[tool.parent].module == "loop-small"
    beside = the_one_at(tree, "background_of_the_application")
    assert (beside.session_id, beside.module, beside.doing) == (None, None, None)
    looking = the_one_at(tree, "look")
    assert (looking.name, looking.state, looking.session_id) == (
        "the one who looks",
        "running",
        None,
    )
    assert looking.at is not None
    assert "task_tree()" in looking.at.code


async def test_parents_precede_children_with_unique_numbers():
    tree = await tree_during(agent(call_all_tools, tools={"tool-wait": mounting(Waiting())}))
    seen: set[int | None] = {None}
    for task in tree.tasks:
        assert task.parent in seen
        seen.add(task.number)
    assert len(seen) == len(tree.tasks) + 1


@pytest.mark.parametrize("timeout", [77.0, None])
async def test_turn_deadline_covers_its_tasks(timeout):
    tree = await tree_during(
        agent(call_all_tools, tools={"tool-wait": mounting(Waiting())}), timeout=timeout
    )
    task = the_one_at(tree, "Waiting._deeper")
    if timeout is None:
        assert (task.seconds_left, task.deadline) == (None, None)
    else:
        assert task.seconds_left is not None
        assert 0 < task.seconds_left <= timeout
        assert task.deadline == "a turn"


@pytest.mark.parametrize(("turns", "is_nearer"), [(500, False), (30, True), (None, False)])
async def test_handler_has_module_event_and_deadline(turns, is_nearer):
    async def mount(coordinator: Any, config: Any) -> None:
        async def slow_policy(event: str, data: Any) -> HookResult:
            await anyio.sleep_forever()
            return HookResult()

        coordinator.hooks.register("tool:pre", slow_policy, name="policy", timeout=40)

    async def emit(turn: Turn) -> str:
        await turn.hooks.emit("tool:pre", {})
        return "done"

    tree = await tree_during(agent(emit, hooks={"hooks-policy": mount}), timeout=turns)
    task = the_one_at(tree, "slow_policy")
    assert task.module == "hooks-policy"
    assert task.doing == "handler 'policy' of module 'hooks-policy' for 'tool:pre'"
    assert task.deadline == ("a turn" if is_nearer else task.doing)
    assert task.seconds_left is not None
    assert 0 < task.seconds_left <= (30 if is_nearer else 40)


@pytest.mark.virtual_time
async def test_stubborn_code_shows_passed_deadline():
    async def mount(coordinator: Any, config: Any) -> None:
        async def stubborn(event: str, data: Any) -> HookResult:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(60)
            return HookResult()

        coordinator.hooks.register("work", stubborn, name="stubborn", timeout=5)

    async def emit(turn: Turn) -> str:
        await turn.hooks.emit("work", {})
        return "done"

    trees: list[TaskTree] = []
    async with (
        agent(emit, hooks={"hooks-stubborn": mount}) as session,
        anyio.create_task_group() as group,
    ):
        group.start_soon(session.execute, "go")
        await anyio.sleep(15)
        trees.append(task_tree())
    task = the_one_at(trees[0], "stubborn")
    assert task.seconds_left == pytest.approx(-10, abs=0.1)
    assert "passed 10.0 s ago" in str(trees[0])


async def test_unanswered_question_is_shown():
    class Nobody:
        async def request_approval(
            self, prompt: str, options: list[str], timeout: float, default: str
        ) -> str:
            await anyio.sleep_forever()
            return "Deny"

    async def ask(turn: Turn) -> str:
        verdict = HookResult(action="ask_user", approval_prompt="May I?", approval_timeout=90)
        await turn.coordinator.process_hook_result(verdict, "tool:pre", "policy")
        return "done"

    task = the_one_at(
        await tree_during(agent(ask, approval_system=Nobody())), "Nobody.request_approval"
    )
    assert task.doing == "approval for hook 'policy'"
    assert task.seconds_left is not None
    assert 0 < task.seconds_left <= 90


async def test_background_work_belongs_to_module():
    async def mount_background(coordinator: Any, config: Any) -> None:
        async def keep_watch() -> None:
            await anyio.sleep_forever()

        coordinator.start_soon(keep_watch, name="watch")

    async def listen() -> None:
        await anyio.sleep_forever()

    @asynccontextmanager
    async def mount_structured(coordinator: Any, config: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            yield
            group.cancel_scope.cancel()

    hooks = {"hooks-watch": mount_background, "hooks-listen": mount_structured}
    session = agent(
        call_all_tools, tools={"tool-wait": mounting(Waiting())}, hooks=hooks, session_id="s2"
    )
    tree = await tree_during(session, timeout=9)
    watch, listening = the_one_at(tree, "keep_watch"), the_one_at(tree, "listen")
    assert (watch.session_id, watch.module, watch.doing) == (
        "s2",
        "hooks-watch",
        "background task 'watch'",
    )
    assert (listening.session_id, listening.module) == ("s2", "hooks-listen")
    assert watch.seconds_left is listening.seconds_left is None  # the turn's deadline is not theirs


async def test_hanging_structured_mount_is_named(anyio_backend_name: str):
    """On asyncio the lines of an asynchronous generator are not visible, and the report says so."""

    @asynccontextmanager
    async def mount_for_ever(coordinator: Any, config: Any) -> AsyncIterator[None]:
        await anyio.sleep_forever()
        yield

    trees: list[TaskTree] = []
    async with anyio.create_task_group() as group:

        async def open_it() -> None:
            async with agent(tools={"tool-slow": mount_for_ever}):
                pass

        group.start_soon(open_it)
        await anyio.wait_all_tasks_blocked()
        trees.append(task_tree())
        group.cancel_scope.cancel()
    (mounting_it,) = [
        each for each in trees[0].tasks if each.deadline == "mount of module 'tool-slow'"
    ]
    if anyio_backend_name == "trio":
        task = the_one_at(trees[0], "mount_for_ever")
        assert task.waits_in == "anyio sleep_forever"
    else:
        (task,) = [each for each in trees[0].tasks if each.waits_in == "an asynchronous generator"]
        assert "(an asynchronous generator)" in str(trees[0])
    assert task.module == "tool-slow"
    assert mounting_it.seconds_left is not None
    assert 0 < mounting_it.seconds_left <= 120


async def test_child_session_differs_from_parent():
    async def delegate(turn: Turn) -> str:
        child = turn.coordinator.session.fork(session_id="child")
        async with child:
            return str(await child.execute("wait"))

    async def body(turn: Turn) -> str:
        return await (call_first_tool(turn) if turn.prompt == "wait" else delegate(turn))

    session = agent(body, tools={"tool-wait": mounting(Waiting())}, session_id="parent")
    tree = await tree_during(session)
    waiting = the_one_at(tree, "Waiting._deeper")
    assert waiting.session_id == "child"
    chain = _chain_to(tree, waiting)
    assert [line.function for line in chain if line.function == "Turn.run"] == ["Turn.run"] * 2
    assert {task.session_id for task in tree.tasks} <= {"child", "parent", None}


def _chain_to(tree: TaskTree, task: TaskReport) -> list[CodeLine]:
    """The awaits of a task behind those of the tasks above it."""
    by_number = {each.number: each for each in tree.tasks}
    above = [] if task.parent is None else _chain_to(tree, by_number[task.parent])
    return [*above, *task.awaits]


async def test_thread_is_shown_with_its_line():
    entered, leave = threading.Event(), threading.Event()

    def hold_on() -> None:
        entered.set()
        leave.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, hold_on)
        await anyio.to_thread.run_sync(entered.wait)
        tree = task_tree()
        leave.set()
    functions = [line.function for thread in tree.threads for line in thread.stack]
    assert any(function.endswith("hold_on") for function in functions)


async def test_unstarted_task_is_reported():
    async def later() -> None:
        await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(later, name="later")
        tree = task_tree()
    (task,) = [task for task in tree.tasks if task.name == "later"]
    assert task.state == "not started"


def test_process_without_loop_shows_threads_only():
    tree = task_tree()
    assert (tree.backend, tree.tasks) == (None, [])
    (own,) = [thread for thread in tree.threads if thread.name == threading.current_thread().name]
    assert own.stack[-1].function.startswith("test_process_without_loop")


async def test_inspection_changes_nothing():
    session = agent(call_all_tools, tools={"tool-wait": mounting(Waiting())})
    seen: list[list[tuple[str, str | None]]] = []
    async with session, anyio.create_task_group() as group:
        group.start_soon(session.execute, "go")
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            seen.append([(task.name, task.module) for task in task_tree().tasks])
        group.cancel_scope.cancel()
    assert seen[0] == seen[1] == seen[2]


async def test_inspected_session_is_collected_after_closing():
    session = agent(call_all_tools, tools={"tool-wait": mounting(Waiting())})
    gone = weakref.ref(session)
    tree = await tree_during(session)
    del session
    gc.collect()
    assert tree.tasks
    assert gone() is None


async def test_tree_survives_json_and_has_text(
    anyio_backend_name,
):
    tree = await tree_during(
        agent(call_all_tools, tools={"tool-wait": mounting(Waiting())}, session_id="s3")
    )
    assert from_json(TaskTree, to_json(tree)) == tree
    assert tree.backend == anyio_backend_name
    text = str(tree)
    assert text.count("●") == len(tree.tasks)
    assert f"{len(tree.tasks)} tasks, 1 session, {anyio_backend_name}" in text
    assert "session s3, module tool-wait" in text
    assert "await anyio.sleep_forever()" in text


async def test_terminal_escapes_in_names_are_text():
    async def later() -> None:
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(later, name="evil \x1b[2J")
        await anyio.wait_all_tasks_blocked()
        text = str(task_tree())
        group.cancel_scope.cancel()
    assert "\x1b" not in text
    assert "evil" in text
