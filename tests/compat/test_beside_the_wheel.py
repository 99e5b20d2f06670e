"""The published kernel's package is installed: commands of ours give published modules the alias all the same, on both backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .published_modules import write_modules, write_package
from .test_install import published_wheel

DENIES = """
from amplifier_core import HookResult

async def mount(coordinator, config=None):
    async def no(event, data):
        return HookResult(action="deny", reason="not today")

    coordinator.hooks.register("prompt:submit", no, name="no")
"""


def amplifier(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Our command in an environment with the wheel, whose package has none of the names that modules import."""
    place = folder / "installed"
    if not place.exists():
        published_wheel(place)
    surroundings = {**os.environ, "PYTHONPATH": str(place), "AMPLIFIER_HOME": str(folder / "home")}
    surroundings["AMPLIFIER_MODULES"] = str(folder)
    command = [sys.executable, "-m", "amplifier", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=folder, check=False, env=surroundings
    )


def plan_in(folder: Path, *hooks: str) -> str:
    write_modules(folder)
    write_package(folder, "hooks-no", DENIES)
    session = {"orchestrator": {"module": "loop-small-small"}, "context": {"module": "context-list-small"}}
    plan = {
        "session": session,
        "providers": [{"module": "provider-offline"}],
        "hooks": [{"module": module} for module in hooks],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return str(folder / "plan.json")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_answers_by_a_published_loop(tmp_path: Path, backend: str):
    ended = amplifier(tmp_path, "run", "--backend", backend, "--plan", plan_in(tmp_path), "hello")
    assert (ended.returncode, "provider-offline" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_prompt_that_a_published_hook_denies_to_a_published_loop_ends_with_a_failure(tmp_path: Path, backend: str):
    ended = amplifier(tmp_path, "run", "--backend", backend, "--plan", plan_in(tmp_path, "hooks-no"), "hello")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Operation denied: not today" in ended.stderr


@pytest.mark.slow
def test_the_doctor_reports_the_wheel_the_alias_and_who_uses_it(tmp_path: Path):
    write_package(tmp_path, "hooks-no", DENIES)
    found = json.loads(amplifier(tmp_path, "doctor", "--json").stdout)["findings"]
    said = [each["text"] for each in found if each["subject"] == "published"]
    assert said[0].startswith(f"amplifier-core 2.0.2 is installed ({tmp_path / 'installed'}")
    assert said[1].startswith("hooks-no import")
    assert "the alias is there for" in said[2]


@pytest.mark.slow
def test_the_kit_examines_a_published_module_through_the_alias(tmp_path: Path):
    root = write_package(tmp_path, "hooks-no", DENIES)
    ended = amplifier(tmp_path, "module", "validate", str(root), "--only", "A1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "alias of this kernel" in ended.stdout
