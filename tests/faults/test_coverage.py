"""Every fault of the table has a test, every test here names a fault, and each runs on both backends."""

from __future__ import annotations

import ast
import re

from tests._support.tree import TESTS, parse, python_files
from tests.faults.fault_list import FAULTS
from tests.faults.fault_tally import Tally
from tests.faults.faults_published import HOLDS, PUBLISHED

_NAME = re.compile(r"test_f(\d\d[a-z]?)_\w+")


def fault_tests() -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The test functions of this folder by the fault in their name; those without one under the empty string."""
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for path in python_files(TESTS / "faults"):
        if path.name == "test_coverage.py":
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                match = _NAME.fullmatch(node.name)
                found.setdefault(f"F{match[1]}" if match else "", []).append(node)
    return found


def runs_on_both_backends(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Async tests do, by `tests/_support/backends.py`; a test about a whole process takes the backend's name."""
    takes_backend = any(argument.arg == "backend" for argument in test.args.args)
    named = "parametrize('backend', ['asyncio', 'trio'])"
    return isinstance(test, ast.AsyncFunctionDef) or (
        takes_backend and any(named in ast.unparse(decorator) for decorator in test.decorator_list)
    )


def test_seventy_five_faults_have_distinct_titles():
    assert len(FAULTS) == 75
    assert len(set(FAULTS.values())) == len(FAULTS)
    assert all(re.fullmatch(r"F\d\d[a-z]?", fault) for fault in FAULTS)


def test_faults_and_tests_correspond():
    assert fault_tests().keys() == FAULTS.keys()


def test_every_fault_is_tested_on_both_backends():
    assert [
        t.name for tests in fault_tests().values() for t in tests if not runs_on_both_backends(t)
    ] == []


def test_published_outcome_is_known_per_fault():
    assert list(PUBLISHED) == list(FAULTS)
    assert sum(outcome == HOLDS for outcome in PUBLISHED.values()) == 14


def test_fault_holds_where_tested():
    tally = Tally()
    tally.note("tests/faults/test_hooks.py::test_f01_a_handler[asyncio]", passed=True)
    tally.note("tests/faults/test_hooks.py::test_f01_a_handler[trio-5]", passed=True)
    tally.note("tests/faults/test_hooks.py::test_f01_another_one[trio-6]", passed=False)
    tally.note("tests/kernel/hooks/test_registry.py::test_f02_elsewhere[trio]", passed=True)
    assert [tally.holds("F01", backend) for backend in ("asyncio", "trio")] == [True, False]
    assert not tally.holds("F02", "trio")
    assert tally.line() == "faults: 1 of 75 hold on asyncio, 0 on trio"
