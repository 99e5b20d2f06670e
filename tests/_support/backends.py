"""Every async test runs on asyncio and on trio; with the marker ``virtual_time`` no test waits for a clock.

The ini option ``anyio_mode = "auto"`` makes each ``async def test_…`` use the fixture below, property tests included,
so a test needs neither a marker nor a decorator to run on both.

Under ``virtual_time`` the clock jumps to the next deadline whenever every task is waiting. All examples of one
Hypothesis test share a trio clock: measure differences of `anyio.current_time`, not its value.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.testing.virtual_time import Backend, virtual_backend
from tests._support.tree import TESTS

BACKENDS = os.environ.get("TEST_BACKENDS", "asyncio trio").split()
"""What async tests run on; ``uvloop`` is asyncio with that event loop, except in virtual time, which has its own."""

if (
    "uvloop" in BACKENDS
):  # its first loop opens pipes for the whole process, which no test has left behind
    anyio.run(anyio.lowlevel.checkpoint, backend="asyncio", backend_options={"use_uvloop": True})


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> str | Backend | tuple[str, dict[str, Any]]:
    """The backend this test runs on, in the form AnyIO's plugin takes."""
    name: str = request.param
    if request.node.get_closest_marker("virtual_time"):
        return virtual_backend("asyncio" if name == "uvloop" else name)
    return ("asyncio", {"use_uvloop": True}) if name == "uvloop" else name


TAKEN_BY_TURNS = (
    "cli",
    "compat",
    "conformance",
    "durable",
    "live",
    "modules/providers",
    "modules/tools",
    "servers",
)
"""Folders whose tests start programs, servers and engines: `make test` runs each of them on one backend."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark one of the two backends of each such test `slow`: asyncio of the one half, trio of the other."""
    folders = tuple(f"{TESTS / folder}{os.sep}" for folder in TAKEN_BY_TURNS)
    pairs: dict[tuple[str, str], dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and str(item.path).startswith(folders)
            and hasattr(item, "callspec")
        ):
            names = item.name.partition("[")[2].rstrip("]").split("-")
            for backend in {"asyncio", "trio"}.intersection(names):
                rest = "-".join(name for name in names if name != backend)
                pairs[f"{item.path}::{item.originalname}", rest][backend] = item
    for key, pair in pairs.items():
        if len(pair) == 2 and not any(
            item.get_closest_marker(mark) for item in pair.values() for mark in ("slow", "long")
        ):
            pair[
                sorted(pair)[zlib.crc32(f"{key[0].removeprefix(str(TESTS))} {key[1]}".encode()) % 2]
            ].add_marker(pytest.mark.slow)


def by_turns(cases: Iterable[Any]) -> list[Any]:
    """Parameters of slow tests: each case with one backend, asyncio and trio by turns; with the other one it is `long`.

    For cases about something that does the same on both and of which there are many, such as attempts to leave a sandbox.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            backend,
            marks=pytest.mark.long if other else (),
        )
        for number, case in enumerate(cases)
        for backend, other in (("asyncio", number % 2), ("trio", not number % 2))
    ]


def mostly_on(backend: str) -> pytest.MarkDecorator:
    """For a test of a program whose way of showing things is the same on both: it runs on one; on the other it is `long`."""
    other = "trio" if backend == "asyncio" else "asyncio"
    return pytest.mark.parametrize(
        "backend", [backend, pytest.param(other, marks=pytest.mark.long)]
    )
