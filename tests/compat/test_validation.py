"""The published validators, plans' validator and inherited suites, over modules in the published style."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests._support.forked import run_forked

from .published_agent import write_agent

SUITES = {
    "loop-basic": "Orchestrator",
    "provider-scripted": "Provider",
    "tool-todo": "Tool",
    "context-simple": "Context",
    "hooks-logging": "Hook",
}
INHERITED = {"Orchestrator": 7, "Provider": 6, "Tool": 8, "Context": 11, "Hook": 8}


@pytest.fixture
def validation(alias: None) -> Iterator[ModuleType]:
    """The mirror's ``validation``, which leaves no entries in sys.path."""
    import amplifier_core.validation  # type: ignore[import-not-found]

    path = list(sys.path)
    yield amplifier_core.validation
    assert sys.path == path


def package(directory: Path, name: str, source: str) -> Path:
    path = directory / f"amplifier_module_{name}"
    path.mkdir()
    (path / "__init__.py").write_text(source, encoding="utf-8")
    return path


@pytest.fixture
def anyio_backend() -> str:
    """Published modules call asyncio by name."""
    return "asyncio"


async def test_package_loaded_from_elsewhere_is_refused(validation: Any, tmp_path: Path):
    source = "async def mount(c, config): return lambda: None"
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    first = await validation.ToolValidator().validate(package(tmp_path / "one", "twice", source))
    second = await validation.ToolValidator().validate(package(tmp_path / "two", "twice", source))

    assert first.passed
    assert [error.name for error in second.errors] == ["module_importable"]
    assert "already loaded" in second.errors[0].message


async def test_validating_leaves_nothing_open(validation: Any, tmp_path: Path):
    source = """
opened = []
async def mount(c, config):
    opened.append(1)
    c.register_cleanup(opened.pop)
    return lambda: None
"""
    place = package(tmp_path, "closes", source)

    await validation.ToolValidator().validate(place)

    assert sys.modules["amplifier_module_closes"].opened == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "kind"),
    [
        pytest.param(*suite, marks=[] if suite[1] == "Tool" else pytest.mark.slow)
        for suite in SUITES.items()
    ],
)
def test_module_suite_runs_inherited_tests(tmp_path: Path, module: str, kind: str):
    place = write_agent(tmp_path)[module]
    (place / "tests").mkdir()
    (place / "tests" / "test_suites.py").write_text(
        f"from amplifier_core.validation.behavioral import {kind}BehaviorTests\n"
        f"from amplifier_core.validation.structural import {kind}StructuralTests\n\n\n"
        f"class TestBehaviour({kind}BehaviorTests):\n    pass\n\n\n"
        f"class TestStructure({kind}StructuralTests):\n    pass\n\n\n"
        f"def test_type(module_type, module_path):\n"
        f"    assert (module_type, module_path.name[:17]) == ({kind.lower()!r}, 'amplifier_module_')\n",
        encoding="utf-8",
    )

    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "amplifier.compat.pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    run = run_forked(command, cwd=place, text=True, timeout=280)

    assert f"{INHERITED[kind] + 1} passed" in run.stdout, run.stdout + run.stderr
