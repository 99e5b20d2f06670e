"""Which operations leave more and more descriptors of a file open, and which only keep one."""

from __future__ import annotations

from functools import partial
from typing import IO

import pytest

from amplifier.conformance.checks.every_module.cancellation import find_growing_file
from amplifier.conformance.target.locate import find_target, load
from amplifier.conformance.target.mounted import CheckContext
from amplifier.conformance.target.process import SEES_PROCESSES
from amplifier.conformance.target.use import Operation
from tests.conformance.modules import SOUND_TOOL, write_module

pytestmark = pytest.mark.skipif(not SEES_PROCESSES, reason="open files are read from /proc")


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
@pytest.mark.parametrize(
    ("most", "result", "is_found"),
    [
        (100, lambda files: [True, "same"], True),
        (100, lambda files: [True, len(files)], False),
        (1, lambda files: [True, "same"], False),
        (3, lambda files: [True, "same"], False),
        (0, lambda files: [True, "same"], False),
    ],
    ids=["one more for every call", "handles on request", "one for the session", "a pool of three", "none"],
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
