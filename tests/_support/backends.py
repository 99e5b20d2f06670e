"""Every async test runs on asyncio and on trio; with the marker ``virtual_time`` no test waits for a clock.

The ini option ``anyio_mode = "auto"`` makes each ``async def test_…`` use the fixture below, property tests included,
so a test needs neither a marker nor a decorator to run on both.

Under ``virtual_time`` the clock jumps to the next deadline whenever every task is waiting. All examples of one
Hypothesis test share a trio clock: measure differences of `anyio.current_time`, not its value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.testing.virtual_time import Backend, virtual_backend

BACKENDS = os.environ.get("TEST_BACKENDS", "asyncio trio").split()
"""What async tests run on; ``uvloop`` is asyncio with that event loop, except in virtual time, which has its own."""

if "uvloop" in BACKENDS:  # its first loop opens pipes for the whole process, which no test has left behind
    anyio.run(anyio.lowlevel.checkpoint, backend="asyncio", backend_options={"use_uvloop": True})


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> str | Backend | tuple[str, dict[str, Any]]:
    """The backend this test runs on, in the form AnyIO's plugin takes."""
    name: str = request.param
    if request.node.get_closest_marker("virtual_time"):
        return virtual_backend("asyncio" if name == "uvloop" else name)
    return ("asyncio", {"use_uvloop": True}) if name == "uvloop" else name


def by_turns(cases: Iterable[Any]) -> list[Any]:
    """Parameters of slow tests: each case with one backend, asyncio and trio by turns; with the other one it is `long`.

    For cases about something that does the same on both and of which there are many, such as attempts to leave a sandbox.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), backend, marks=pytest.mark.long if other else ())
        for number, case in enumerate(cases)
        for backend, other in (("asyncio", number % 2), ("trio", not number % 2))
    ]


def mostly_on(backend: str) -> pytest.MarkDecorator:
    """For a test of a program whose way of showing things is the same on both: it runs on one; on the other it is `long`."""
    other = "trio" if backend == "asyncio" else "asyncio"
    return pytest.mark.parametrize("backend", [backend, pytest.param(other, marks=pytest.mark.long)])
