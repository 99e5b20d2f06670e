"""Fixtures of the command line tests: a state folder, a working directory, a plan with the scripted agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli._scripted_agent import write_plan


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the command keeps its state; not made yet."""
    return tmp_path / "home"


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """The directory the agent works in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """The plan file of the scripted agent."""
    return str(write_plan(tmp_path))


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    """The backend a command runs on."""
    name: str = request.param
    return name
