"""Fails a test that leaves something behind: tasks, threads, child processes, file descriptors, sys.path entries.

Tasks are counted inside the test's own event loop, right after its last line; everything else after the last
function-scoped fixture is torn down. A test that failed already is not blamed twice, but what it left is still ended.

Limits: processes and descriptors are read from ``/proc``, so elsewhere only tasks, threads and sys.path are watched.
A grandchild that cleared its environment and outlived its parent is not recognised as ours.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import field, frozen

_PROC = Path("/proc")
_MOMENT = 0.1
_PATIENCE = float(os.environ.get("LEAK_GUARD_PATIENCE", "30"))
"""Seconds that something on its way out (a stopped worker thread, a killed process) may take to be gone."""
_SETTLING_STEPS = 5
"""Turns of the event loop that a finished task may take to disappear from the loop's books."""

_MARK = "AMPLIFIER_TEST_RUN"
_passed_call = pytest.StashKey[bool]()


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Put the task check around an async test, inside its event loop; for a property, around every example."""
    if "anyio_backend" in pyfuncitem.funcargs:
        handle = getattr(pyfuncitem.obj, "hypothesis", None)
        if handle is None:
            pyfuncitem.obj = _without_leftover_tasks(pyfuncitem.obj)
        else:
            handle.inner_test = _without_leftover_tasks(handle.inner_test)
    return (yield)


def _without_leftover_tasks(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    # The second backend finds a property's inner test already wrapped, by AnyIO around us.
    original = getattr(test, "_anyio_original_func", test)
    if hasattr(original, "_leaves_no_task") or not _is_async(original):
        return test

    @functools.wraps(original)
    async def checked(*args: Any, **kwargs: Any) -> None:
        before = {task.id for task in anyio.get_running_tasks()}
        await original(*args, **kwargs)
        left = await _new_tasks(before)
        if left:
            pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)

    checked._leaves_no_task = True  # type: ignore[attr-defined]
    return checked


def _is_async(function: Callable[..., object]) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return bool(code and code.co_flags & 0x80)  # inspect.CO_COROUTINE


async def _new_tasks(before: set[int]) -> list[str]:
    left: list[str] = []
    for _ in range(_SETTLING_STEPS):
        left = [
            f"task {task.name!r}" for task in anyio.get_running_tasks() if task.id not in before
        ]
        if not left:
            break
        await anyio.lowlevel.checkpoint()
    return left


# ── everything that is not a task ────────────────────────────────────────────────────────────────


@frozen
class Resources:
    """What the process holds at one moment."""

    threads: frozenset[threading.Thread] = field(factory=lambda: frozenset(threading.enumerate()))
    descriptors: dict[int, str] = field(factory=lambda: dict(_open_descriptors()))
    process_ids: frozenset[int] = field(factory=lambda: frozenset(_process_ids()))
    path: tuple[str, ...] = field(factory=lambda: tuple(sys.path))
    allowed: tuple[str, ...] = ()
    """Texts of what may be left, from the marker ``may_leave``."""

    def new_threads(self) -> list[threading.Thread]:
        """Threads that were started since and are at work."""
        idle = _idle_cached_threads()
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self.threads and thread not in idle
        ]

    def new_processes(self) -> list[int]:
        """Processes of ours that were started since."""
        return [pid for pid in _process_ids() if pid not in self.process_ids and _is_ours(pid)]

    def new_descriptors(self) -> dict[int, str]:
        """Descriptors that were opened since."""
        return {
            fd: target for fd, target in _open_descriptors() if self.descriptors.get(fd) != target
        }

    def new_path_entries(self) -> list[str]:
        """sys.path entries that were added since."""
        return [entry for entry in sys.path if entry not in self.path]

    def leaks(self) -> list[str]:
        """What is here now and was not then, one phrase each."""
        found = [
            *(f"thread {thread.name!r}" for thread in self.new_threads()),
            *(f"process {pid} ({_command_line(pid)})" for pid in self.new_processes()),
            *(f"file descriptor {fd} ({target})" for fd, target in self.new_descriptors().items()),
            *(f"sys.path entry {entry!r}" for entry in self.new_path_entries()),
        ]
        return [what for what in found if not any(text in what for text in self.allowed)]

    def leaks_after_patience(self) -> list[str]:
        """As `leaks`, once whatever was on its way out has had the time to leave."""
        if not self._leaks_within(_MOMENT):  # most are worker threads that are just ending
            return []
        gc.collect()  # a file in a reference cycle closes, with a ResourceWarning that fails the test on its own
        return self._leaks_within(_PATIENCE)

    def _leaks_within(self, seconds: float) -> list[str]:
        give_up = time.monotonic() + seconds
        while (left := self.leaks()) and time.monotonic() < give_up:
            time.sleep(0.01)
        return left

    def end_leftovers(self) -> None:
        """End what can be ended from outside, so that the next test starts clean."""
        for pid in self.new_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        sys.path[:] = [entry for entry in sys.path if entry in self.path]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed."""
    report = yield
    if report.when == "call":
        item.stash[_passed_call] = report.passed
    return report


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if it leaves anything of `Resources` behind.

    Being automatic and function-scoped, it starts after wider fixtures and ends after all others of its scope.
    """
    before = Resources(
        allowed=tuple(text for mark in request.node.iter_markers("may_leave") for text in mark.args)
    )
    yield
    left = before.leaks_after_patience()
    if left:
        before.end_leftovers()
        if request.node.stash.get(_passed_call, False):
            pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)


def pytest_configure() -> None:
    """Mark this run's environment, which every process started from here inherits."""
    os.environ[_MARK] = str(os.getpid())


def _idle_cached_threads() -> set[threading.Thread]:
    """Threads that trio keeps for ten seconds in case of more work; only those that have none at the moment.

    AnyIO's worker threads on asyncio need no such exception: they end with their event loop. The cache is private to
    trio; should it move, idle threads would be reported and `tests/architecture/test_setup.py` fails.
    """
    cache = getattr(sys.modules.get("trio._core._thread_cache"), "THREAD_CACHE", None)
    return {worker._thread for worker in list(getattr(cache, "_idle_workers", ()))}


def _open_descriptors() -> Iterator[tuple[int, str]]:
    folder = _PROC / "self" / "fd"
    if not folder.is_dir():
        return
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # the descriptor of this very listing
            yield int(name), os.readlink(f"{folder}/{name}")


def _process_ids() -> Iterator[int]:
    if _PROC.is_dir():
        yield from (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _is_ours(pid: int) -> bool:
    """Whether the process is a child of ours, dead or alive, or descends from one and outlived it."""
    try:
        parent = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        if parent == os.getpid():
            return True
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return False
    return f"{_MARK}={os.getpid()}".encode() in environment.split(b"\0")


def _command_line(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone meanwhile"
    return b" ".join(words).decode(errors="replace").strip() or "ended, but was never waited for"
