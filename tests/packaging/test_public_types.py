"""Every public name has a type that no checker has to guess: ``pyright --verifytypes`` finds nothing to complain about.

Nor do mypy and pyright in the program that the docs compare with other libraries, which is short.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests._support.node_parts import node, program
from tests._support.tree import ROOT

pytestmark = pytest.mark.slow


def verified(package: str, folder: Path, *more: Path) -> dict[str, Any]:
    """The report of pyright on the types of a package; it looks for packages where the first ``python`` of PATH does."""
    command = [
        node(),
        program("pyright", "index.js"),
        "--verifytypes",
        package,
        "--ignoreexternal",
        "--outputjson",
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(map(str, more))}
    finished = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    report: dict[str, Any] = json.loads(finished.stdout)["typeCompleteness"]
    return report


def incomplete(report: dict[str, Any]) -> list[str]:
    return [symbol["name"] for symbol in report["symbols"] if not symbol["isTypeKnown"]]


def test_public_names_have_known_types(tmp_path: Path) -> None:
    report = verified("amplifier", tmp_path)
    assert report["pyTypedPath"]
    assert len(report["symbols"]) > 1000
    assert incomplete(report) == []
    assert report["completenessScore"] == 1


def test_planted_guess_is_found(tmp_path: Path) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text(
        "class A:\n    def __init__(self) -> None:\n        self.x = tuple([1])\n"
    )
    report = verified("planted", tmp_path, tmp_path)
    assert incomplete(report) == ["planted.A", "planted.A.x"]


def compared_program() -> str:
    """Two tools, streaming, an approval, a typed answer and a budget; `tests/docs/test_code_blocks.py` runs it on both backends."""
    page = (ROOT / "docs" / "how-to" / "come-from-another-library.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def wrong_files(folder: Path, **programs: str) -> tuple[set[str], set[str]]:
    """The programs in which mypy and pyright find errors, both as strict as they can be."""
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    }
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    pyright = [node(), program("pyright", "index.js")]
    found = []
    for command in (mypy, pyright):
        words = [*command, *(f"{name}.py" for name in programs)]
        ended = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode in (0, 1), ended.stdout + ended.stderr
        found.append(set(re.findall(r"(\w+)\.py:\d+", ended.stdout)))
    return found[0], found[1]


def test_compared_program_is_short_and_typed(
    tmp_path: Path,
) -> None:
    text = compared_program()
    assert len(text.splitlines()) <= 35
    for word in (
        "tools=[weather, note]",
        "session.stream_text(",
        "approve=",
        "result_type=Report",
        "budget=",
    ):
        assert word in text
    wrong = wrong_files(tmp_path, right=text, planted=text.replace("-> bool", "-> str"))
    assert wrong == ({"planted"}, {"planted"})
