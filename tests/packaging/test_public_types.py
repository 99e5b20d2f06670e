"""Every public name has a type that no checker has to guess: ``pyright --verifytypes`` finds nothing to complain about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests._support.node_parts import node, program

pytestmark = pytest.mark.slow


def verified(package: str, folder: Path, *more: Path) -> dict[str, Any]:
    """The report of pyright on the types of a package; it looks for packages where the first ``python`` of PATH does."""
    command = [node(), program("pyright", "index.js"), "--verifytypes", package, "--ignoreexternal", "--outputjson"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(map(str, more))}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(finished.stdout)["typeCompleteness"]
    return report


def incomplete(report: dict[str, Any]) -> list[str]:
    return [symbol["name"] for symbol in report["symbols"] if not symbol["isTypeKnown"]]


def test_every_public_name_has_a_known_type(tmp_path: Path) -> None:
    report = verified("amplifier", tmp_path)
    assert report["pyTypedPath"]
    assert len(report["symbols"]) > 1000
    assert incomplete(report) == []
    assert report["completenessScore"] == 1


def test_a_planted_guess_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text("class A:\n    def __init__(self) -> None:\n        self.x = tuple([1])\n")
    report = verified("planted", tmp_path, tmp_path)
    assert incomplete(report) == ["planted.A", "planted.A.x"]
