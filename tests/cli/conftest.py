"""Fixtures of the command line tests: a state folder, a working directory, a plan with the scripted agent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli import main
from tests.cli._scripted_agent import write_plan


@pytest.fixture(autouse=True)
def _forget_published_modules() -> Iterator[None]:
    """A command that runs in this process may import a module that a test has written; others of that name come later."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("amplifier_module_"):
            del sys.modules[name]


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


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module to where commands look for modules."""

    def write(module_id: str, text: str) -> None:
        package = (
            tmp_path
            / f"amplifier-module-{module_id}"
            / f"amplifier_module_{module_id.replace('-', '_')}"
        )
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
        monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))

    return write


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command in this process, which has to end with this code; returns what it has printed."""

    def run(*words: str, code: int = 0) -> Any:
        assert main([*words]) == code
        return capsys.readouterr()

    return run
