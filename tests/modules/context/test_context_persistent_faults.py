"""Every write to the disk fails in turn: nothing acknowledged is lost, nothing is invented, and what is in memory is in the file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from amplifier.modules.context.persistent import PersistentContext, read_persistent_options
from tests._support.child_process import run_child
from tests.modules.context.test_context_persistent import stored

STEPS: list[tuple[str, Any]] = [
    ("add", {"role": "user", "content": "one"}),
    ("add", {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "look"}]}),
    ("set", [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]),
    ("add", {"role": "user", "content": "three " + "x" * 9000}),
    ("clear", None),
    ("add", {"role": "user", "content": "four"}),
]


def after(step: tuple[str, Any], before: list[Any]) -> list[Any]:
    return {"add": [*before, step[1]], "set": step[1], "clear": []}[step[0]]


async def take(context: PersistentContext, step: tuple[str, Any]) -> None:
    match step[0]:
        case "add":
            await context.add_message(step[1])
        case "set":
            await context.set_messages(step[1])
        case "clear":
            await context.clear()


def make(root: Path) -> PersistentContext:
    return PersistentContext(
        read_persistent_options("s", {"path": root, "resume_policy": "replace"})
    )


LIMITED = """
import json, resource
from tests.modules.context.test_context_persistent_faults import STEPS, after, make, take
from tests.modules.context.test_context_persistent import stored

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    for size in range(int(sys.argv[3]), 120_000, int(sys.argv[4])):
        root = Path(sys.argv[2]) / str(size)
        context, expected, refused = make(root), [], 0
        limit(size)
        try:
            await context.open()
        except OSError as error:
            assert error.filename and "sessions" in error.filename, error
            limit(resource.RLIM_INFINITY)
            print_line("not opened")
            assert stored(root) == [], size
            continue
        for step in STEPS:
            try:
                await take(context, step)
            except OSError as error:
                assert error.filename == str(root / "store.db"), error
                refused += 1
            else:
                expected = after(step, expected)
            assert await context.get_messages() == expected, (size, step)
        await context.close()
        limit(resource.RLIM_INFINITY)
        assert stored(root) == expected, size
        print_line(f"refused {refused}")

anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_memory_matches_file_after_failed_write(backend, tmp_path):
    """Files may not become longer than a limit, which is higher in every trial: the system refuses another write each time."""
    first = {"asyncio": 0, "trio": 2000}[backend]
    ended = run_child(
        f"from pathlib import Path\n{LIMITED}",
        backend,
        str(tmp_path / "sessions"),
        str(first),
        "4000",
    )
    assert ended.code == 0, ended.errors
    assert {"not opened", "refused 0"} < set(ended.lines)
    assert any(line not in ("not opened", "refused 0") for line in ended.lines), ended.lines


async def test_full_disk_refuses_until_room(tmp_path):
    context = make(tmp_path)
    await context.open()
    await context.add_message(STEPS[0][1])
    database = context._stored._database
    assert database is not None
    connection = database._connection
    assert connection is not None
    connection.execute(
        "PRAGMA max_page_count = 1"
    )  # SQLite takes it for the size of the disk, and stays at today's
    for step in (STEPS[3], ("set", [STEPS[3][1]])):
        with pytest.raises(
            OSError, match=r"No space left on device.*nothing was stored; free some space"
        ) as caught:
            await take(context, step)
        assert (caught.value.errno, caught.value.filename) == (
            errno.ENOSPC,
            str(tmp_path / "store.db"),
        )
        assert await context.get_messages() == [STEPS[0][1]]
    connection.execute("PRAGMA max_page_count = 1000000")
    await context.add_message(STEPS[3][1])
    await context.close()
    assert stored(tmp_path) == [STEPS[0][1], STEPS[3][1]]
