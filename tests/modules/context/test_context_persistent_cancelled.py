"""A persistent context cancelled at every suspension: a step has happened completely or not at all, and nothing stays open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from amplifier.modules.context.persistent import PersistentContext, read_persistent_options
from amplifier.store import SessionIndex
from amplifier.testing import cancel_everywhere
from tests.modules.context.test_context_persistent import agent, stored

ALONE = ("trio", "asyncio-scope", "asyncio-native")
"""A second native cancel inside a module is the kernel's to hold back; see the session below."""


def text(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


class World:
    """One trial: steps over a fresh conversation, and what must hold when they were cut short somewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()
        self.files = open_files(root)
        self.context = PersistentContext(
            read_persistent_options("s", {"path": root, "resume_policy": "replace"})
        )
        self.acknowledged: list[Any] = []
        self.allowed: list[list[Any]] = [[]]

    async def step(self, fn: Callable[..., Any], argument: Any, expected: list[Any]) -> None:
        self.allowed = [self.acknowledged, expected]
        await fn(*argument)
        self.acknowledged = expected
        self.allowed = [expected]

    async def scenario(self) -> None:
        try:
            await self.context.open()
            await self.step(self.context.add_message, [text("one")], [text("one")])
            await self.step(self.context.add_message, [text("two")], [text("one"), text("two")])
            await self.step(self.context.set_messages, [[text("three")]], [text("three")])
            await self.context.get_messages_for_request(1)
            await self.step(self.context.clear, [], [])
            await self.step(self.context.add_message, [text("four")], [text("four")])
        finally:
            await self.context.close()

    def check(self) -> list[str]:
        problems = []
        if self.context._stored.is_open or open_files(self.root) != self.files:
            problems.append(f"files are open: {open_files(self.root)}")
        in_memory = self.context._conversation.copy()
        if self.context._writing.statistics().locked:
            problems.append("the lock is held")
        on_disk = SessionIndex(self.root).transcript("s")
        if in_memory != on_disk:
            problems.append(f"memory has {in_memory}, the disk has {on_disk}")
        if on_disk not in self.allowed:
            problems.append(f"the disk has {on_disk}, expected one of {self.allowed}")
        return problems


def open_files(root: Path) -> list[str]:
    links = Path("/proc/self/fd")
    return sorted(
        target
        for fd in os.listdir(links)
        if (target := _target(links / fd)).startswith(str(root)) and target
    )


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("mode", ALONE)
def test_cancelled_step_is_atomic(mode, tmp_path):
    """A step has happened on disk and in memory, or in neither."""
    worlds = iter(range(1_000_000))
    report = cancel_everywhere(
        lambda: World(tmp_path / str(next(worlds))), modes=[mode], clock="real"
    )
    report.raise_if_broken()
    assert min(report.points.values()) >= 12


async def test_lock_is_free_after_cancelled_writers(tmp_path):
    context = PersistentContext(read_persistent_options("s", {"path": tmp_path}))
    await context.open()
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(context.add_message, text(str(number)))
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    with anyio.fail_after(60):
        await context.add_message(text("after"))
    messages = await context.get_messages()
    await context.close()
    assert messages[-1] == text("after")
    assert len(messages) <= 2  # of the others one may have begun, and then it was taken to its end
    assert stored(tmp_path) == messages


@pytest.mark.parametrize("mode", [*ALONE, "asyncio-native-twice"])
def test_cancelled_session_resumes_with_valid_transcript(mode, tmp_path):
    worlds = iter(range(1_000_000))

    def make() -> Any:
        root = tmp_path / str(next(worlds))
        root.mkdir()
        acknowledged: list[Any] = []
        session = agent([[("look", {"n": 1}), ("look", {"n": 2})], "done"], root)

        async def scenario() -> None:
            async with session:
                context = session.coordinator.get("context")
                try:
                    await session.execute("hello")
                finally:
                    acknowledged.extend(context._conversation.copy())

        def check() -> list[str]:
            problems = [f"files are open: {files}"] if (files := open_files(root)) else []
            on_disk = SessionIndex(root).transcript("s")
            if on_disk != acknowledged:
                problems.append(f"memory had {acknowledged}, the disk has {on_disk}")
            calls = [call["id"] for message in on_disk for call in message.get("tool_calls", ())]
            results = [message["tool_call_id"] for message in on_disk if message["role"] == "tool"]
            if calls != results:
                problems.append(f"calls {calls} were answered by {results}")
            return problems

        return scenario, check

    report = cancel_everywhere(
        make, modes=[mode], clock="real", max_points=20, second_after=(1, 2, 4), expect=()
    )
    report.raise_if_broken()
    assert min(report.points.values()) >= 12
