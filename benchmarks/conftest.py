"""What every benchmark gets: one core, one board for all rows, and the table at the end of the run."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
from typing import Any

import pytest

from benchmarks.board import HEADING, RESULTS, Board
from benchmarks.duel import QUICK

_BOARD = Board()
_COMPARED = (
    "amplifier-core",
    "anyio",
    "trio",
    "pluggy",
    "pydantic-ai-slim",
    "openai-agents",
    "langgraph",
    "langchain",
)

if hasattr(os, "sched_setaffinity"):
    # One core for us and all we start. This favours the published kernel, whose calls hop between threads.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Board:
    _BOARD.group = request.path.stem.removeprefix("test_")
    return _BOARD


def pytest_configure(config: pytest.Config) -> None:
    # Sessions that were opened by hand are dropped with their event loop, which is not timed.
    config.addinivalue_line(
        "filterwarnings", "ignore:session .* was dropped while it was open:ResourceWarning"
    )
    config.addinivalue_line("markers", "orientation: rows that are left out of a first look")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if QUICK:
        left_out = [item for item in items if item.get_closest_marker("orientation")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    gc.unfreeze()  # see `duel.tidy`; other plugins look at the collector's lists on their way out


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not _BOARD.rows:
        return
    _BOARD.write(
        about(), is_whole=config.args == ["benchmarks"] and not config.getoption("keyword")
    )
    terminalreporter.section(
        "ratios: how many times faster ours is" + (", at a first look" if QUICK else "")
    )
    terminalreporter.write_line(HEADING)
    for row in _BOARD.rows:
        terminalreporter.write_line(row.line())
    terminalreporter.write_line(f"{len(_BOARD.rows)} rows, written to {RESULTS}")


def about() -> dict[str, Any]:
    """When, with what and on what kind of machine."""
    versions = {name: version for name in _COMPARED if (version := _version(name))}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": QUICK,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
