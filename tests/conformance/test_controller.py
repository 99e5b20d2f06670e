"""`check_module`: what it finds, what it survives, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.checks.registry import CHECKS, all_clauses
from amplifier.conformance.page import write_page
from amplifier.conformance.target.locate import find_target
from amplifier.errors import ModuleLoadError, ModuleNotFoundError
from amplifier.models import from_json, to_json
from tests.conformance.modules import SOUND_TOOL, check, write_module, write_project

CORPUS = Path(__file__).parent / "corpus"

SHIELDED_SLEEP = """import anyio
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3600)"""


def broken(report: Report) -> set[str]:
    return {found.clause for found in report.violations}


def test_every_check_names_existing_clauses_and_describes_how_it_works():
    clauses = all_clauses()
    assert CHECKS
    for each in CHECKS.values():
        assert each.clauses, each.name
        assert set(each.clauses) <= set(clauses), each.name
        assert each.how.endswith("."), each.name


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("library", ["anyio", "asyncio"])
def test_a_module_that_runs_an_event_loop_of_its_own_when_it_is_imported_is_told_the_line(
    tmp_path, library, backend
):
    source = (
        SOUND_TOOL
        + f"""

    import {library}

    async def prepare():
        pass

    {library}.run(prepare() if "{library}" == "asyncio" else prepare)
"""
    )
    file = write_module(tmp_path, source)
    report = check(file, only=["A1"], backends=[backend])
    if (library, backend) == ("asyncio", "trio"):
        assert report.ok, str(report)  # there is no loop of asyncio that would forbid it
        return
    (found,) = report.violations
    assert "unning" in found.what
    assert found.line == len(file.read_text().splitlines())
    assert "anyio.run" in found.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "only"), [(write_module, ()), (write_project, ("A1", "A3", "A20", "T1", "T5"))]
)
def test_a_sound_tool_conforms_as_a_file_and_as_a_project(tmp_path, write, only):
    report = check(write(tmp_path, SOUND_TOOL), only=only)
    assert report.ok, str(report)
    assert report.violations == report.recommendations == []
    assert {each.status for each in report.clauses} <= {"kept", "not_checked"}
    assert report.backends == ["asyncio", "trio"]


@pytest.mark.slow
async def test_it_runs_inside_a_loop_of_either_backend(tmp_path):
    report = await check_module(write_module(tmp_path, SOUND_TOOL), only=["T5"], backends=["trio"])
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_report_round_trips_through_json_and_is_escaped_in_its_page(tmp_path):
    source = SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "return 7  # <b>")
    report = check(write_module(tmp_path, source))
    assert broken(report) == {"T4"}
    assert {found.clause for found in report.recommendations} == {"A4"}
    again = from_json(Report, to_json(report))
    assert again == report
    assert json.loads(to_json(report))["format"] == 1
    page = write_page(report)
    assert "<title>tool-echo: violations</title>" in page
    assert "A4" in page
    assert "<b>" not in page


def test_static_runs_nothing_of_the_module(tmp_path):
    trace = tmp_path / "ran"
    source = f"open({str(trace)!r}, 'w').close()\n" + SOUND_TOOL.replace("\n    ", "\n")
    root = write_project(tmp_path, source, entry_points="")
    report = check(root, static=True)
    assert broken(report) == {"A1"}
    assert report.profile == "static"
    assert report.backends == []
    assert not trace.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted", ["raise RuntimeError('no')", "import sys; sys.exit(3)", "import os; os._exit(3)"]
)
def test_a_module_that_cannot_be_imported_is_a_violation_and_no_more(tmp_path, planted):
    report = check(write_module(tmp_path, planted + "\n" + SOUND_TOOL.replace("\n    ", "\n")))
    assert broken(report) == {"A1"}
    assert report.verdict == "violations"


@pytest.mark.parametrize(
    ("planted", "clause"),
    [
        pytest.param("import time; time.sleep(3600)", "A17", marks=pytest.mark.slow),
        ("import os; os._exit(1)", "A17"),
        pytest.param(SHIELDED_SLEEP, "A8", marks=pytest.mark.slow),
    ],
)
def test_a_call_that_cannot_be_stopped_ends_its_process_and_not_the_examination(
    tmp_path, planted, clause
):
    source = SOUND_TOOL.replace(
        'text = input.get("text")', f'text = input.get("text")\n            {planted}'
    )
    report = check(write_module(tmp_path, source), only=["A7", "A2"], backends=["asyncio"])
    assert clause in broken(report), str(report)
    assert next(each for each in report.clauses if each.id == "A2").status == "kept"


@pytest.mark.slow
def test_a_module_that_runs_on_asyncio_alone_has_to_declare_it(tmp_path):
    source = "import asyncio\n" + SOUND_TOOL.replace("\n    ", "\n").replace(
        'text = input.get("text")', 'await asyncio.sleep(0); text = input.get("text")'
    )
    report = check(write_module(tmp_path, source))
    assert broken(report) == {"A18"}, str(report)
    declared = '__amplifier_backends__ = ("asyncio",)\n' + source
    report = check(write_module(tmp_path, declared), only=["A7", "A18", "T5"])
    assert report.ok, str(report)
    assert report.limitations == ["declares asyncio only: on trio it runs on an asyncio island"]
    assert report.backends == ["asyncio", "trio"]
    assert {each.id: each.backends for each in report.clauses}["T5"] == ["asyncio", "trio"]


@pytest.mark.slow
@pytest.mark.parametrize("examined_on", ["asyncio", "trio"])
def test_a_call_that_hangs_after_a_cancelled_one_is_reported_once(examined_on):
    file = CORPUS / "hook" / "faulty" / "A9_keeps_the_lock.py"
    report = check(file, module_type="hook", only=["A9"], backends=[examined_on])
    (violation,) = report.violations
    assert violation.clause == "A9"
    assert "did not end within" in str(violation)
    assert "NoneType" not in str(report)


@pytest.mark.slow
def test_a_module_that_cannot_be_examined_is_reported(tmp_path):
    with pytest.raises(ModuleNotFoundError, match="neither a folder"):
        check("no-such-module-anywhere")
    with pytest.raises(ModuleLoadError, match="expected one of"):
        check("tool-todo", module_type="spoon")
    with pytest.raises(ModuleLoadError, match="type of 'thing' is not known"):
        check(
            write_module(tmp_path, "async def mount(coordinator, config): ...", "thing.py"),
            static=True,
        )
    report = check(
        write_module(
            tmp_path, SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "config['key']")
        )
    )
    assert report.verdict == "unchecked"
    assert any("could not be mounted" in note for note in report.notes)


FUNCTIONS = '''
    from amplifier import on, tool as marked

    @marked(quick=True)
    def add(first: int, second: int = 1) -> int:
        """Add two numbers."""
        return first + second

    @on("tool:pre")
    async def listen(event, data): ...
'''


def test_a_file_of_marked_functions_is_a_module_of_tools(tmp_path):
    file = write_module(tmp_path, FUNCTIONS, "numbers_of_mine.py")
    assert find_target(file).module_type == "tool"
    report = check(file, only=["A1", "A3", "A20", "T1", "T5"], backends=["asyncio"])
    assert report.ok, str(report)
    assert report.recommendations == []
    only_hooks = write_module(
        tmp_path, FUNCTIONS.replace("@marked(quick=True)", ""), "listeners.py"
    )
    assert find_target(only_hooks).module_type == "hook"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (FUNCTIONS.replace("second: int = 1", "**second: int"), "tool 'add' takes **second; a model sends arguments by name"),
        (FUNCTIONS.replace("@marked(quick=True)", "").replace('@on("tool:pre")', ""), "or functions marked with @tool or @on"),
    ],
)  # fmt: skip
def test_a_file_whose_functions_cannot_be_tools_is_a_violation(tmp_path, source, message):
    report = check(
        write_module(tmp_path, source, "tool_numbers.py"), only=["A1", "A3"], backends=["asyncio"]
    )
    assert message in str(report)
    assert "A1" in broken(report)


def test_process_that_was_forked_twice_is_found():
    """Neither its parent nor its environment tells whose it is."""
    file = Path(__file__).parent / "corpus" / "tool" / "faulty" / "A14_daemon_forked_twice.py"
    report = check(file, module_type="tool", only=("A14",), backends=("asyncio",))
    assert [found.clause for found in report.violations] == ["A14"]
    assert "the process" in report.violations[0].what
