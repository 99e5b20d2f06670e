"""The pytest integration: one item for each clause and backend, in an author's own suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.programs import run_program
from tests.conformance.modules import SOUND_TOOL, write_module

SUITE = """
from pathlib import Path
from amplifier.conformance.suites import conformance_tests

HERE = Path(__file__).parent
test_both = conformance_tests(HERE / "tool_echo.py", {options})
test_echo = conformance_tests(HERE / "tool_echo.py", backends=["trio"])

def test_of_my_own():
    assert test_both.module == str(HERE / "tool_echo.py")
"""


def run_files(
    folder: Path, texts: list[str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    files = [folder / f"test_mine{number or ''}.py" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-rxsf",
        "-p",
        "no:cacheprovider",
        *arguments,
        *map(str, files),
    ]
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": "",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder),
        "COLUMNS": "300",
    }
    return run_program(words, cwd=cwd or folder, env=environment)


def run_file(
    folder: Path, text: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return run_files(folder, [IMPORTS + text], *arguments, cwd=cwd)


def run_suite(folder: Path, options: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_files(folder, [SUITE.replace("{options}", options)], *arguments)


IMPORTS = "from amplifier.conformance.suites import conformance_tests\n\n"


@pytest.mark.slow
def test_a_sound_module_has_one_passing_test_per_clause_and_backend(tmp_path):
    write_module(tmp_path, SOUND_TOOL)
    done = run_suite(tmp_path, "", "-k", "A20 or T4 or my_own")  # all 80 pass in tests/examples
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
    for item in (
        "test_both::A20[asyncio] PASSED",
        "test_both::A20[trio] PASSED",
        "test_echo::T4[trio] PASSED",
    ):
        assert item in done.stdout
    assert "test_echo::T4[asyncio]" not in done.stdout
    assert "test_of_my_own PASSED" in done.stdout


@pytest.mark.slow
def test_a_broken_clause_fails_with_the_finding_and_can_be_expected(tmp_path):
    write_module(tmp_path, SOUND_TOOL.replace('"type": "object"', '"type": "thing"'))
    done = run_suite(tmp_path, "", "-k", "test_both and T7")
    assert done.returncode == 1, done.stdout
    assert "T7: the schema of 'echo' is not a valid JSON Schema" in done.stdout
    assert "fix:" in done.stdout
    done = run_suite(tmp_path, 'xfail = {"T7": "later"}', "-k", "test_both and (T7 or A3)")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "2 xfailed" in done.stdout


@pytest.mark.long
def test_a_broken_recommendation_does_not_fail(tmp_path):
    write_module(
        tmp_path,
        SOUND_TOOL.replace(
            'coordinator.mount("tools", Echo())', 'coordinator.mount("tools", Echo()); return 7'
        ),
    )
    done = run_suite(tmp_path, "", "-k", "test_both and A4")
    assert done.returncode == 0, done.stdout
    assert "2 xfailed" in done.stdout
    assert "A4 (recommended): mount returned int" in done.stdout


@pytest.mark.long
def test_an_expected_failure_that_does_not_come_is_a_failure(tmp_path):
    write_module(tmp_path, SOUND_TOOL)
    done = run_suite(tmp_path, 'xfail = {"A4": "later"}', "-k", "test_both and A4")
    assert done.returncode == 1
    assert "take it out of xfail" in done.stdout
    done = run_suite(tmp_path, 'xfail = {"O4": "typo"}', "-k", "test_both")
    assert "no clauses of this type" in done.stdout


@pytest.mark.long
def test_plugins_that_ask_every_item_for_its_function_get_one(tmp_path):
    # As pytest-trio does.
    write_module(tmp_path, SOUND_TOOL)
    (tmp_path / "conftest.py").write_text(
        "import inspect\n\n\ndef pytest_collection_modifyitems(items):\n"
        "    assert not any(inspect.iscoroutinefunction(item.obj) for item in items)\n",
        encoding="utf-8",
    )
    done = run_suite(tmp_path, "", "--collect-only")
    assert done.returncode == 0, done.stdout
    assert "<_Clause A7[trio]>" in done.stdout


@pytest.mark.slow
def test_without_the_extra_no_test_passes_and_the_missing_package_is_named(tmp_path):
    package = "trio"
    (tmp_path / "conftest.py").write_text(
        f"import sys\n\nsys.modules[{package!r}] = None\n", encoding="utf-8"
    )
    done = run_file(
        tmp_path, "test_todo = conformance_tests('tool-todo')\n", "-p", "no:hypothesispytest"
    )
    assert done.returncode == 2, done.stdout
    sentence = f"({package} is not installed); install it with: pip install 'amplifier[testing]'"
    assert sentence in done.stdout
    assert done.stdout.count(" ERROR collecting ") == 1
    assert "passed" not in done.stdout


@pytest.mark.slow
def test_a_path_is_looked_for_beside_the_file_that_names_it(tmp_path):
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    write_module(own, SOUND_TOOL)
    paths = ["tool_echo.py", "./tool_echo.py", "../own/tool_echo.py"]
    texts = [f"{IMPORTS}test_echo = conformance_tests({path!r})\n" for path in paths]
    done = run_files(own, texts, "--collect-only", cwd=elsewhere)
    assert done.returncode == 0, done.stdout
    assert f"{82 * 3} tests collected" in done.stdout


@pytest.mark.long
def test_a_path_may_still_be_meant_from_the_working_directory(tmp_path):
    own = tmp_path / "tests"
    own.mkdir()
    write_module(tmp_path, SOUND_TOOL)
    done = run_file(
        own, "test_echo = conformance_tests('tool_echo.py')\n", "--collect-only", cwd=tmp_path
    )
    assert "82 tests collected" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_backend_that_the_module_does_not_run_on_is_skipped_and_not_passed(tmp_path):
    write_module(
        tmp_path, '__amplifier_backends__ = ("trio",)\n' + SOUND_TOOL.replace("\n    ", "\n")
    )
    done = run_file(tmp_path, "test_echo = conformance_tests('tool_echo.py')\n", "-k", "T5 or A20")
    assert done.returncode == 0, done.stdout
    assert "T5 was not examined on asyncio: declares that it does not run on asyncio" in done.stdout
    assert "3 passed, 1 skipped" in done.stdout


@pytest.mark.slow
def test_a_module_that_could_not_be_examined_does_not_leave_a_suite_that_passes(tmp_path):
    write_module(
        tmp_path,
        SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "raise RuntimeError('no key')"),
    )
    done = run_file(tmp_path, "test_echo = conformance_tests('tool_echo.py')\n", "-k", "T5")
    assert done.returncode == 1, done.stdout
    assert "T5 was not examined on asyncio: it could not be mounted on asyncio" in done.stdout


@pytest.mark.slow
def test_a_required_clause_that_was_not_examined_fails_and_a_recommended_one_is_skipped(tmp_path):
    hangs = "import anyio; await anyio.Event().wait() if text is None else None"
    write_module(
        tmp_path,
        SOUND_TOOL.replace('text = input.get("text")', f'text = input.get("text"); {hangs}'),
    )
    text = "test_echo = conformance_tests('tool_echo.py', backends=['trio'])\n"
    done = run_file(tmp_path, text, "-k", "T5 or T12 or T1")
    assert "test_echo::T5[trio] FAILED" in done.stdout, done.stdout
    assert "test_echo::T12[trio] SKIPPED" in done.stdout
    assert "test_echo::T1[trio] PASSED" in done.stdout
    assert "T5, T6" in done.stdout
