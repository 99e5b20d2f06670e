"""What a finding tells an author: where to look, what replaced a cancellation, what an import lacks."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.checks.registry import all_clauses
from amplifier.conformance.target.locate import find_target
from amplifier.conformance.target.source import source_location
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


def check(target: Path | str, *only: str, backend: str = "asyncio") -> Report:
    async def run() -> Report:
        return await check_module(target, only=only, backends=[backend])

    return anyio.run(run)


# ── where to look ──


@pytest.mark.parametrize(
    ("clause", "line"),
    [
        ("T7", "def get_schema"),  # named by the clause
        ("T8", "def get_schema"),  # the likeliest of those that the clause names
        ("T5", "async def execute"),  # the clause names none: where a tool does its work
        ("A13", "async def execute"),  # none of those that the clause names is there
        ("T4", "async def mount"),  # about mounting
    ],
)
def test_a_finding_points_to_the_function_that_keeps_the_promise(tmp_path, clause, line):
    file = write_module(tmp_path, SOUND_TOOL)
    number = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if line in text)
    found = source_location(find_target(file), "tool", all_clauses()[clause], None)
    assert found == f"tool_echo.py:{number}"


def test_a_finding_of_a_cancelled_call_points_to_the_await(tmp_path):
    target = find_target(write_module(tmp_path, SOUND_TOOL))
    found = source_location(
        target, "tool", all_clauses()["A9"], "some/where/tool_echo.py:12 execute"
    )
    assert found == "tool_echo.py:12"


def test_a_file_that_cannot_be_parsed_has_no_location(tmp_path):
    target = find_target(write_module(tmp_path, "def ("), "tool")
    assert source_location(target, "tool", all_clauses()["T5"], None) is None


@pytest.mark.parametrize(
    "registration",
    [
        "register(event, Guard().on_tool)",
        "register(event, handler=on_tool, name='x')",
        "register(event, on_tool)",
    ],
)
def test_a_finding_of_a_hook_points_to_the_handler_that_is_registered(tmp_path, registration):
    source = f"async def mount(coordinator, config):\n    coordinator.hooks.{registration}\n\n\nasync def on_tool(event, data): ...\n"
    target = find_target(write_module(tmp_path, source, "hooks_guard.py"))
    assert source_location(target, "hook", all_clauses()["H7"], None) == "hooks_guard.py:5"
    assert source_location(target, "hook", all_clauses()["H9"], None) == "hooks_guard.py:1"


def test_a_location_in_a_package_is_relative_to_its_folder(tmp_path):
    root = write_project(tmp_path, "from .parts.work import mount")
    work = root / "tool_echo" / "parts" / "work.py"
    work.parent.mkdir()
    work.with_name("__init__.py").touch()
    work.write_text("async def execute(): ...\n\n\nasync def mount(coordinator, config): ...\n")
    target = find_target(root, "tool")
    clauses = all_clauses()
    assert source_location(target, "tool", clauses["T4"], None) == "parts/work.py:4"
    assert source_location(target, "tool", clauses["T5"], None) == "parts/work.py:1"
    assert (
        source_location(target, "tool", clauses["A9"], "parts/work.py:3 execute")
        == "parts/work.py:3"
    )
    assert (
        source_location(target, "tool", clauses["A9"], "httpx/_client.py:3 send")
        == "parts/work.py:1"
    )
    assert target.path_of("parts/work.py:4") == work
    assert target.path_of("pyproject.toml") == root / "pyproject.toml"
    assert target.path_of("nowhere.py:4") is None


def test_a_module_on_a_search_path_is_found_by_its_id(tmp_path, monkeypatch):
    package = tmp_path / "amplifier-module-tool-zz" / "amplifier_module_tool_zz"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("async def mount(coordinator, config): ...\n")
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
    found = find_target("tool-zz")
    assert (found.module_id, found.import_name, found.search_path) == (
        "tool-zz",
        package.name,
        package.parent,
    )


# ── an error in place of the cancellation ──


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def test_an_error_that_replaces_a_cancellation_is_named_with_its_line(tmp_path, backend):
    head = "async def execute(self, input):\n"
    body = "try:\n    await anyio.sleep(0.01)\nexcept BaseException as error:\n    raise RuntimeError('stopped') from error"
    source = SOUND_TOOL.replace(head, head + indent(body, " " * 12) + "\n", 1)
    file = write_module(tmp_path, "import anyio\n" + source.replace("\n    ", "\n"))
    (found,) = [
        each for each in check(file, "A7", backend=backend).violations if each.clause == "A7"
    ]
    line = next(
        n for n, text in enumerate(file.read_text().splitlines(), 1) if "raise RuntimeError" in text
    )
    assert found.hint.startswith(
        f"The RuntimeError raised at tool_echo.py:{line} replaces the cancellation."
    )


# ── an import that fails ──


def test_a_missing_import_is_located_and_named_also_inside_mount(tmp_path):
    source = SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "import no_such_thing")
    report = check(write_project(tmp_path, source), "A1", "T1")
    assert report.verdict == "unchecked"
    assert any("No module named 'no_such_thing'" in note for note in report.notes), report.notes
    file = write_module(tmp_path, "import no_such_thing\n" + SOUND_TOOL.replace("\n    ", "\n"))
    (found,) = check(file, "A1", "T1").violations
    assert (
        found.what == "it cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"
    )
    assert found.location == "tool_echo.py:1"
    assert found.hint.startswith("Install what it imports, and declare that in its dependencies.")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (
            "raise RuntimeError('no')\n",
            "Install what it imports, and declare that in its dependencies. Let importing the module succeed",
        ),
        ("x = 1\n", all_clauses()["A1"].hint),
    ],
)
def test_other_failures_of_an_import_get_the_advice_of_their_kind(tmp_path, source, hint):
    found = next(
        each
        for each in check(write_module(tmp_path, source), "A1", "T1").violations
        if each.check == "import"
    )
    assert found.hint.startswith(hint)
