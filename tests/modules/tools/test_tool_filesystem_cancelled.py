"""File tools cancelled at every suspension, in every way: a file is the old one or the new one, and nothing lies beside it."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.modules._shared.worker_threads import Stop
from amplifier.testing import MODES, MockProvider, cancel_everywhere
from tests.modules.tools.test_tool_filesystem import Desk

OLD, NEW = "old " * 1000, "new " * 1000
GIVEN: dict[str, dict[str, Any]] = {
    "write_file": {"file_path": "d/f", "content": NEW},
    "edit_file": {"file_path": "d/f", "old_string": OLD, "new_string": NEW},
    "read_file": {"file_path": "d/f"},
    "glob": {"pattern": "**"},
}


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "f").write_text(OLD)
    return folder


def broken(folder: Path) -> list[str]:
    problems = [f"{name} is left" for name in os.listdir(folder / "d") if name != "f"]
    if (folder / "d" / "f").read_text() not in (OLD, NEW):
        problems.append("the file is torn")
    return problems


@pytest.mark.parametrize("mode", ["trio", "asyncio-scope", "asyncio-native"])
@pytest.mark.parametrize("tool", GIVEN)
def test_call_cancelled_anywhere_keeps_file_whole(tmp_path, tool, mode):
    folder = tmp_path / "ws"

    def make() -> Any:
        fresh(folder)
        desks: list[Desk] = []

        async def scenario() -> None:
            desks.append(await Desk.open(folder))
            await desks[0].get(tool, **GIVEN[tool])

        def check() -> list[str]:
            problems = broken(folder)
            emitted = [event for event, _ in desks[0].recorder.events] if desks else []
            if tool in ("write_file", "edit_file") and ("artifact:write" in emitted) != (
                (folder / "d" / "f").read_text() == NEW
            ):
                problems.append(f"the events ({emitted}) do not match the files")
            return problems

        return scenario, check

    report = cancel_everywhere(make, modes=[mode], clock="real")
    report.raise_if_broken()
    assert report.points[mode] >= 2


@pytest.mark.parametrize("mode", MODES)
def test_session_cancelled_anywhere_keeps_files_whole(tmp_path, mode):
    folder = tmp_path / "ws"

    def make() -> Any:
        fresh(folder)
        provider = MockProvider(
            [[("write_file", GIVEN["write_file"]), ("grep", {"pattern": "old"})], "done"]
        )

        paths = {"allowed_paths": [str(folder)]}
        plan = {
            "session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
            "providers": [provider],
            "tools": [
                {"module": "tool-filesystem", "config": {**paths, "tools": ["write_file"]}},
                {"module": "tool-search", "config": {**paths, "tools": ["grep"], "ripgrep": False}},
            ],
        }

        async def scenario() -> None:
            async with AmplifierSession(plan) as session:
                await session.execute("go")

        return scenario, lambda: broken(folder)

    cancel_everywhere(make, modes=[mode], clock="real", second_after=(1, 2, 4)).raise_if_broken()


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
async def test_write_cancelled_in_system_call_is_atomic(tmp_path, monkeypatch, call):
    """The moments that a sweep over suspensions cannot reach, because the thread is at work."""
    folder = fresh(tmp_path / "ws")
    desk = await Desk.open(folder)
    inside, cancelled = threading.Event(), threading.Event()
    original = getattr(os, call)

    def wait_inside(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        inside.set()
        assert cancelled.wait(60)
        return result

    request = Stop.request

    def note_request(stop: Stop) -> None:
        request(stop)
        cancelled.set()

    monkeypatch.setattr(os, call, wait_inside)
    monkeypatch.setattr(Stop, "request", note_request)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel_when_inside() -> None:
                await anyio.to_thread.run_sync(inside.wait)
                scope.cancel()

            group.start_soon(cancel_when_inside)
            await desk.call("write_file", **GIVEN["write_file"])
    assert scope.cancelled_caught
    assert broken(folder) == []
    assert (folder / "d" / "f").read_text() == (NEW if call == "rename" else OLD)
    assert [event for event, _ in desk.recorder.events] == (
        ["artifact:write"] if call == "rename" else []
    )


async def test_call_cancelled_while_queued_never_begins(tmp_path, monkeypatch, caplog):
    folder = fresh(tmp_path / "ws")
    desk = await Desk.open(folder, threads=1)
    inside, release = threading.Event(), threading.Event()
    read = os.read
    begun = []

    def wait_inside(*args: Any) -> Any:
        begun.append(args)
        inside.set()
        assert release.wait(60)
        return read(*args)

    monkeypatch.setattr(os, "read", wait_inside)
    async with anyio.create_task_group() as group:
        group.start_soon(desk.tools["read_file"].execute, {"file_path": "d/f"})
        await anyio.to_thread.run_sync(inside.wait)
        with anyio.move_on_after(0.05) as scope:
            await desk.call("read_file", file_path="d/f")
        assert scope.cancelled_caught
        assert len(begun) == 1
        assert not caplog.records  # nothing hangs, and no call waited for work that never began
        release.set()
    assert len(begun) > 1  # the first one went on to its end
