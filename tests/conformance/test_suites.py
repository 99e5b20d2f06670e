"""The pytest door: one item for each clause and backend, in an author's own suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.modules import SOUND_TOOL, write_module

SUITE = """
from pathlib import Path
from amplifier.conformance.suites import ToolConformance, conformance_tests

HERE = Path(__file__).parent

class TestEcho(ToolConformance):
    module = HERE / "tool_echo.py"
    {options}

test_echo = conformance_tests(HERE / "tool_echo.py", backends=["trio"])

def test_of_my_own():
    assert ToolConformance.module == ""
"""


def run_suite(folder: Path, options: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(SUITE.replace("{options}", options), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-rxf", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_sound_module_has_one_passing_test_per_clause_and_backend(tmp_path):
    write_module(tmp_path, SOUND_TOOL)
    done = run_suite(tmp_path)
    assert done.returncode == 0, done.stdout
    for item in ("TestEcho::A7[asyncio] PASSED", "TestEcho::A7[trio] PASSED", "test_echo::T4[trio] PASSED"):
        assert item in done.stdout
    assert "test_echo::T4[asyncio]" not in done.stdout
    assert "test_of_my_own PASSED" in done.stdout


def test_a_broken_clause_fails_with_the_finding_and_can_be_expected(tmp_path):
    write_module(
        tmp_path,
        SOUND_TOOL.replace('coordinator.mount("tools", Echo())', 'coordinator.mount("tools", Echo()); return 7'),
    )
    done = run_suite(tmp_path, "", "-k", "TestEcho and A4")
    assert done.returncode == 1, done.stdout
    assert "A4: mount returned int" in done.stdout
    assert "to mend it:" in done.stdout
    done = run_suite(tmp_path, 'xfail = {"A4": "later"}', "-k", "TestEcho and (A4 or A3)")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "2 xfailed" in done.stdout


def test_an_expected_failure_that_does_not_come_is_a_failure(tmp_path):
    write_module(tmp_path, SOUND_TOOL)
    done = run_suite(tmp_path, 'xfail = {"A4": "later"}', "-k", "TestEcho and A4")
    assert done.returncode == 1
    assert "take it out of xfail" in done.stdout
    done = run_suite(tmp_path, 'xfail = {"O4": "typo"}', "-k", "TestEcho")
    assert "no clauses of this type" in done.stdout


def test_the_fixture_reports_on_the_module_of_the_configuration(tmp_path):
    file = write_module(tmp_path, SOUND_TOOL)
    (tmp_path / "test_fixture.py").write_text("def test_it(amplifier_report):\n    assert amplifier_report.ok\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\namplifier_module = {file}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fixture.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_plugins_that_ask_every_item_for_its_function_get_one(tmp_path):
    # As pytest-trio does; `python -m tests.conformance.beside_plugins` tries the real ones.
    write_module(tmp_path, SOUND_TOOL)
    (tmp_path / "conftest.py").write_text(
        "import inspect\n\n\ndef pytest_collection_modifyitems(items):\n"
        "    assert not any(inspect.iscoroutinefunction(item.obj) for item in items)\n",
        encoding="utf-8",
    )
    done = run_suite(tmp_path, "", "--collect-only")
    assert done.returncode == 0, done.stdout
    assert "<_Clause A7[trio]>" in done.stdout
