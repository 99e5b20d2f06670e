"""Where a finding points when no error does: the function that keeps the promise of its clause."""

from __future__ import annotations

import pytest

from amplifier.conformance.harness.check_registry import all_clauses
from amplifier.conformance.report.source_location import source_location
from amplifier.conformance.target.locate import find_target
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


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
    found = source_location(target, "tool", all_clauses()["A9"], "some/where/tool_echo.py:12 execute")
    assert found == "tool_echo.py:12"


def test_a_file_that_cannot_be_parsed_has_no_location(tmp_path):
    target = find_target(write_module(tmp_path, "def ("), "tool")
    assert source_location(target, "tool", all_clauses()["T5"], None) is None


@pytest.mark.parametrize(
    "registration",
    ["register(event, Guard().on_tool)", "register(event, handler=on_tool, name='x')", "register(event, on_tool)"],
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
    assert source_location(target, "tool", clauses["A9"], "parts/work.py:3 execute") == "parts/work.py:3"
    assert source_location(target, "tool", clauses["A9"], "httpx/_client.py:3 send") == "parts/work.py:1"
    assert target.path_of("parts/work.py:4") == work
    assert target.path_of("pyproject.toml") == root / "pyproject.toml"
    assert target.path_of("nowhere.py:4") is None
