"""Where a finding points when no error does: the function that keeps the promise of its clause."""

from __future__ import annotations

import pytest

from amplifier.conformance.harness.check_registry import all_clauses
from amplifier.conformance.report.source_location import source_location
from amplifier.conformance.target.locate import find_target
from tests.conformance.modules import SOUND_TOOL, write_module


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
