"""`import amplifier` stays small: nothing that belongs to tests, terminals, HTTP or one backend comes along."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = [
    *(
        "click",
        "httpx",
        "httpx2",
        "hypercorn",
        "hypothesis",
        "mcp",
        "msgspec",
        "opentelemetry",
        "prompt_toolkit",
        "pydantic",
    ),
    *("pytest", "rich", "starlette", "trio", "unittest", "uvicorn", "yaml"),
]


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after one statement."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(finished.stdout.split())


@pytest.mark.parametrize("module", ["amplifier", "amplifier.testing"])
def test_importing_brings_nothing_that_was_not_asked_for(module):
    assert sorted(loaded_after(f"import {module}").intersection(UNWANTED)) == []


def test_the_kernel_brings_no_event_loop():
    # AnyIO imports a backend when it runs one, so an application on trio never pays for asyncio.
    assert "asyncio" not in loaded_after("import amplifier")


def test_the_pytest_plugin_brings_pytest_and_nothing_else_of_weight():
    brought = loaded_after("import amplifier.pytest_plugin")
    assert "pytest" in brought
    assert sorted(brought.intersection({"click", "httpx", "hypothesis", "pydantic", "rich", "trio", "yaml"})) == []


def test_a_planted_import_is_seen():
    assert {"hypothesis", "unittest"} <= loaded_after("import hypothesis, unittest").intersection(UNWANTED)
