"""A mounted module: the watchdog that ends the worker process when a call cannot be stopped, and files of which more and more descriptors stay open."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from typing import IO, NoReturn

import pytest

from amplifier.conformance.checks.every_module.cancellation import find_growing_file
from amplifier.conformance.target.locate import find_target, load
from amplifier.conformance.target.mounted import CheckContext, Fault
from amplifier.conformance.target.process import SEES_PROCESSES
from amplifier.conformance.target.use import Operation
from tests.conformance.modules import SOUND_TOOL, write_module


class Rung(Exception):
    """In place of the end of the process."""


def abort(fault: Fault) -> NoReturn:
    raise Rung(fault.clause)


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    """A context whose alarms raise `Rung`; the handler and the timer of the test runner are restored."""
    handler, (left, _) = (
        signal.signal(signal.SIGALRM, signal.SIG_IGN),
        signal.setitimer(signal.ITIMER_REAL, 0),
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load(find_target(write_module(tmp_path, SOUND_TOOL), "tool"), {}, {})
    yield CheckContext(loaded=loaded, backend="asyncio", abort=abort)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_calls_that_have_ended_do_not_ring_in_whatever_order_they_end(ctx, first_ends_first):
    first, second = ExitStack(), ExitStack()
    first.enter_context(ctx.watchdog(0))  # due at once; without a timer, so that the test rings it
    second.enter_context(ctx.watchdog(0))
    for stack in (first, second) if first_ends_first else (second, first):
        stack.close()
    signal.raise_signal(signal.SIGALRM)


def test_a_call_that_has_not_ended_rings(ctx):
    with pytest.raises(Rung, match="A12"), ctx.watchdog(0, "A12", "closing"):
        signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def opened():
    files: list[IO[str]] = []
    yield files
    for file in files:
        file.close()


async def open_canary(files, most, result, mounted):
    """Open a file unless there are enough, and return the next result."""
    if len(files) < most:
        files.append((mounted.directory / "canary.txt").open())
    return result(files)


@pytest.mark.slow
@pytest.mark.skipif(not SEES_PROCESSES, reason="open files are read from /proc")
@pytest.mark.parametrize(
    ("most", "result", "is_found"),
    [
        (100, lambda files: [True, "same"], True),
        (100, lambda files: [True, len(files)], False),
        (1, lambda files: [True, "same"], False),
        (3, lambda files: [True, "same"], False),
        (0, lambda files: [True, "same"], False),
    ],
    ids=[
        "one more for every call",
        "handles on request",
        "one for the session",
        "a pool of three",
        "none",
    ],
)
async def test_only_equal_calls_that_each_leave_a_file_open_are_found(
    tmp_path, monkeypatch, opened, most, result, is_found
):
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load(find_target(write_module(tmp_path, SOUND_TOOL), "tool"), {}, {})
    async with CheckContext(loaded=loaded, backend="asyncio").mount() as mounted:
        operation = Operation("execute", None, partial(open_canary, opened, most, result))
        found = await find_growing_file(mounted, operation)
    assert (found is not None) is is_found
