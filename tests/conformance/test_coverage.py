"""A clause is reported as kept only if it was examined: absent modules, unreadable files, steps cut short."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import amplifier.conformance.checks
from amplifier.conformance import ClauseOutcome, Report
from amplifier.conformance.checks.registry import CHECKS
from tests.conformance.modules import SOUND_TOOL, check, with_status, write_module

OF_ITS_MOUNT = {
    "A1",
    "A2",
    "A3",
    "A4",
    "A5",
    "A6",
    "A7",
    "A11",
    "A12",
    "A13",
    "A14",
    "A15",
    "A20",
    "A21",
    "A24",
}
"""The clauses that can be examined though the module is absent."""


def outcome_of(report: Report, clause: str) -> ClauseOutcome:
    return next(outcome for outcome in report.clauses if outcome.id == clause)


# ── an absent module ──


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "module_type", "broken"),
    [
        ("provider-mock", "tool", {"T4"}),
        ("tool-todo", "provider", {"P2"}),
        ("tool-todo", "orchestrator", {"O2"}),
        pytest.param("tool-todo", "context", {"C2"}, marks=pytest.mark.slow),
        pytest.param("tool-todo", "hook", {"H2"}, marks=pytest.mark.slow),
        pytest.param("tool-todo", "resolver", {"R1"}, marks=pytest.mark.slow),
    ],
)
def test_of_a_module_of_another_type_only_its_mount_is_examined(module, module_type, broken):
    report = check(module, module_type=module_type, backends=["trio"])
    assert with_status(report, "broken") == broken, str(report)
    assert with_status(report, "kept") - {"P15"} == OF_ITS_MOUNT
    assert (
        len(with_status(report, "not_checked"))
        == len(report.clauses) - len(with_status(report, "kept")) - 1
    )
    assert f"{len(with_status(report, 'not_checked'))} not examined, 1 violation" in str(report)
    assert f"nothing that can be used as a {module_type}, so only mounting it was examined" in str(
        report
    )


@pytest.mark.slow
def test_an_absent_module_keeps_no_selected_clause():
    report = check("provider-mock", module_type="tool", only=["T5"])
    assert with_status(report, "kept") == set()
    assert report.verdict == "unchecked"
    assert "mount gave nothing" in " ".join(report.notes)
    assert "not examined on asyncio and trio: T5" in " ".join(report.notes)


@pytest.mark.slow
def test_a_hook_that_declines_is_not_examined_for_unregistering(tmp_path):
    source = '__amplifier_module_type__ = "hook"\n\n\nasync def mount(coordinator, config):\n    return None\n'
    report = check(write_module(tmp_path, source, "hooks_none.py"), backends=["asyncio"])
    assert with_status(report, "kept") == OF_ITS_MOUNT | {"H2"}
    assert any("mount declined" in note for note in report.notes)


def test_a_module_that_cannot_be_mounted_keeps_no_clause_about_its_behaviour(tmp_path):
    source = SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "raise RuntimeError('no')")
    report = check(write_module(tmp_path, source), backends=["asyncio"])
    assert report.verdict == "unchecked"
    assert not {clause for clause in with_status(report, "kept") if clause.startswith("T")}
    assert not {"A8", "A9", "A10", "A16", "A17", "A18", "A19"} & with_status(report, "kept")


def test_the_clauses_that_need_no_instance_are_clauses_of_those_checks():
    for name, each in CHECKS.items():
        assert each.without_instance <= set(each.clauses), name


# ── unreadable sources ──


@pytest.mark.parametrize("static", [True, False])
def test_a_file_that_cannot_be_parsed_is_the_only_finding(tmp_path, static):
    report = check(write_module(tmp_path, "def ("), static=static)
    assert with_status(report, "broken") == {"A1"}, str(report)
    assert with_status(report, "kept") == {"A2"}
    assert "tool_echo.py cannot be parsed; not examined: A3, A6, A20" in report.notes
    assert report.recommendations == []


READY = "\n\n    async def on_session_ready(coordinator):\n        pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "clause"),
    [
        (
            SOUND_TOOL.replace("async def mount(", "async def made(") + "\n\n    mount = made\n",
            "A3",
        ),
        (
            SOUND_TOOL.replace("async def mount(", "async def made(")
            + "\n\n    globals()['mount'] = made\n",
            "A3",
        ),
        (
            SOUND_TOOL.replace("async def mount(", "async def made(")
            + "\n\n    def mount(coordinator, config):\n        return made(coordinator, config)\n",
            "A3",
        ),
        (
            SOUND_TOOL.replace("async def mount(", "async def made(")
            + "\n\n    same = lambda function: function\n\n    @same\n    def mount(coordinator, config):\n"
            "        return made(coordinator, config)\n",
            "A3",
        ),
        (
            SOUND_TOOL
            + READY.replace("on_session_ready", "made")
            + "\n    on_session_ready = made\n",
            "A6",
        ),
    ],
    ids=[
        "assigned",
        "put there",
        "returns what it awaits",
        "decorated",
        "on_session_ready assigned",
    ],
)
def test_a_clause_that_the_source_does_not_show_is_kept_only_after_running(
    tmp_path, source, clause
):
    file = write_module(tmp_path, source)
    read = check(file, static=True)
    assert outcome_of(read, clause).status == "not_checked", str(read)
    assert any(
        note.startswith("tool_echo.py does not show") and note.endswith(clause)
        for note in read.notes
    )
    run = check(file, only=[clause], backends=["asyncio"])
    assert outcome_of(run, clause).status == "kept", str(run)
    assert run.notes == []


def test_a_type_that_is_computed_is_not_read(tmp_path):
    source = SOUND_TOOL.replace(
        '__amplifier_module_type__ = "tool"', '__amplifier_module_type__ = "".join(["tool"])'
    )
    report = check(write_module(tmp_path, source), static=True)
    assert outcome_of(report, "A20").status == "not_checked"


# ── backends ──


@pytest.mark.slow
def test_one_backend_alone_does_not_examine_a18(tmp_path):
    file = write_module(tmp_path, SOUND_TOOL)
    alone = check(file, only=["A18", "A2"], backends=["asyncio"])
    assert outcome_of(alone, "A18").status == "not_checked"
    assert "A18 was not examined: that takes trio as well" in alone.notes
    both = check(file, only=["A18"])
    assert outcome_of(both, "A18").status == "kept"
    assert outcome_of(both, "A18").backends == ["asyncio", "trio"]


@pytest.mark.slow
def test_a_clause_lists_the_backends_it_was_examined_on(tmp_path):
    file = write_module(
        tmp_path, '__amplifier_backends__ = ("trio",)\n' + SOUND_TOOL.replace("\n    ", "\n")
    )
    report = check(file, only=["A18", "A2", "T5"])
    assert outcome_of(report, "A18").status == "kept"  # it declares what it runs on
    assert {clause: outcome_of(report, clause).backends for clause in ("T5", "A2")} == {
        "T5": ["trio"],
        "A2": [],
    }


@pytest.mark.slow
def test_a_check_that_ended_with_its_process_keeps_no_clause(tmp_path):
    planted = SOUND_TOOL.replace(
        'text = input.get("text")', 'text = input.get("text"); import os; os._exit(1)'
    )
    report = check(write_module(tmp_path, planted), only=["T9"], backends=["asyncio"])
    assert with_status(report, "broken") == {"A17"}
    assert with_status(report, "kept") == set(), str(report)
    (note,) = [
        each for each in report.notes if "tool.answers_inputs could not be completed" in each
    ]
    assert "; not examined on asyncio: " in note


# ── the report ──


@pytest.mark.slow
def test_the_command_of_a_finding_reproduces_an_import_error(tmp_path):
    file = write_module(tmp_path, "raise RuntimeError('no')\n" + SOUND_TOOL.replace("\n    ", "\n"))
    (found,) = check(file).violations
    assert shlex.split(found.reproduce) == [
        "amplifier",
        "module",
        "validate",
        str(file),
        "--only",
        "A1",
    ]
    assert [each.what for each in check(file, only=["A1"]).violations] == [found.what]


def test_every_file_with_checks_is_imported():
    package = Path(amplifier.conformance.checks.__file__).parent
    files = [
        path for path in package.rglob("*.py") if "\n@check(" in path.read_text(encoding="utf-8")
    ]
    names = {".".join(path.relative_to(package).with_suffix("").parts) for path in files}
    registered = {
        each.run.__module__.removeprefix("amplifier.conformance.checks.")
        for each in CHECKS.values()
    }
    assert names == registered
