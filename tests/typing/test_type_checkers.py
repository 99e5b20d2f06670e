"""mypy and pyright, both strict, accept the typed examples of this folder and new modules of every type."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amplifier.cli import main
from amplifier.contracts import CONTRACTS
from tests._support.node_parts import node, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TYPED = sorted(
    path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")
)


@pytest.fixture
def new_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Path]:
    """A new module of every type; beside them a copy of the typed examples, because pyright looks below its folder only."""
    for kind in CONTRACTS:
        assert main(["module", "new", "word-count", "--type", kind, "--into", str(tmp_path)]) == 0
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == len(CONTRACTS) == 6
    (tmp_path / "typed").mkdir()
    for path in TYPED:
        shutil.copy(path, tmp_path / "typed")
    return folders


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_accepts_typed_code(new_modules: list[Path], tmp_path: Path) -> None:
    packages = [next(folder.glob("amplifier_module_*")) for folder in new_modules]
    # The test files of all six have one name, which mypy does not accept in one run.
    checked = [tmp_path / "typed", *packages, new_modules[0] / "tests" / "test_conformance.py"]
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    finished = run([*command, *map(str, checked)], tmp_path)
    assert finished.stdout.startswith("Success"), finished.stdout + finished.stderr


def test_pyright_accepts_typed_code(new_modules: list[Path], tmp_path: Path) -> None:
    config = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # those are for mypy; pyright has its own
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": ["typed", *(folder.name for folder in new_modules)],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    finished = run(
        [node(), program("pyright", "index.js"), "--outputjson", "-p", str(tmp_path)], tmp_path
    )
    report = json.loads(finished.stdout)
    problems = [
        f"{found['file']}:{found['range']['start']['line'] + 1}: {found['message']} ({found.get('rule')})"
        for found in report["generalDiagnostics"]
    ]
    assert problems == []
    assert report["summary"]["filesAnalyzed"] == len(TYPED) + 2 * len(new_modules)


WRONG = """
from amplifier import agent, tool

def decide(question: str) -> bool:
    return True

@tool(timout=3)
def weather(city: str) -> int:
    return 1

agent("offline", approve=decide)
reveal_type(weather)
"""


def test_mypy_finds_wrong_arguments(tmp_path: Path) -> None:
    """A misspelt option of a tool is an error of its own, and the function keeps its type."""
    (tmp_path / "program.py").write_text(WRONG)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        "program.py",
    ]
    lines = run(command, tmp_path).stdout.splitlines()
    assert any(
        'to "agent" has incompatible type' in line and line.startswith("program.py:11:")
        for line in lines
    )
    missing = 'Missing named argument "unknown_option" for "__call__" of "_UnknownOption"'
    errors = [line for line in lines if line.startswith("program.py:7: error:")]
    assert errors == [f"program.py:7: error: {missing}  [call-arg]"]
    assert 'program.py:12: note: Revealed type is "def (city: str) -> int"' in lines, lines
