"""The ready workflow of "validate in CI" is the one that is shown, is a valid workflow, and its commands work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from amplifier.cli import main
from tests._support.tree import ROOT

HOW_TO = ROOT / "docs" / "how-to"
WORKFLOW = HOW_TO / "conformance.yml"


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return found


def commands() -> list[str]:
    (job,) = workflow()["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def test_page_links_to_workflow():
    assert "[conformance.yml](conformance.yml)" in (HOW_TO / "prove-a-module.md").read_text(
        encoding="utf-8"
    )


def test_workflow_is_restricted_and_pinned():
    read = workflow()
    assert set(read) == {
        "name",
        True,
        "permissions",
        "jobs",
    }  # YAML takes the word `on` for a truth value
    assert set(read[True]) == {"push", "pull_request"}
    assert read["permissions"] == {"contents": "read"}
    (job,) = read["jobs"].values()
    assert job["timeout-minutes"] > 0
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
    assert [str(python) for python in job["strategy"]["matrix"]["python"]] == [
        "3.11",
        "3.12",
        "3.13",
    ]


def test_installed_extras_exist():
    install = commands()[0]
    asked = re.search(r"amplifier\[([a-z,]+)\]", install)
    assert asked is not None
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(asked[1].split(",")) <= set(extras)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_page_commands_judge_modules_correctly(tmp_path, capsys):
    assert main(["module", "new", "word-count", "--type", "tool", "--into", str(tmp_path)]) == 0
    folder = tmp_path / "amplifier-module-tool-word-count"
    _install, own_tests, validate = commands()
    outputs = "--html report.html --junit report.xml"
    assert (own_tests, validate) == ("pytest", f"amplifier module validate . {outputs}")
    # The suite of a new module is the same examination once more; that it is found and runs is enough here.
    assert run_in(folder, "pytest", "-q", "-k", "A2").returncode == 0
    assert run_in(folder, "amplifier", *validate.split()[1:]).returncode == 0
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert ElementTree.parse(folder / "report.xml").getroot().get("failures") == "0"
    package = folder / "amplifier_module_tool_word_count" / "__init__.py"
    package.write_text(package.read_text().replace("async def execute", "async def no_execute"))
    broken = run_in(folder, "amplifier", *validate.split()[1:])
    assert broken.returncode in (1, 2), broken.stdout
    assert "look at: amplifier_module_tool_word_count/__init__.py:" in broken.stdout


def run_in(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the workflow; the search path replaces ``pip install .``."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    words = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
