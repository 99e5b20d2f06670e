"""Verdicts: a module conforms only if every required clause was examined, on every backend that was asked for."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import Any

import anyio
import pytest

from amplifier.cli import main
from amplifier.conformance import Report, check_module
from tests.conformance.modules import SOUND_TOOL, write_module

MOUNTED = 'coordinator.mount("tools", Echo())'


def check(target: Any, **options: Any) -> Report:
    async def run() -> Report:
        return await check_module(target, **options)

    return anyio.run(run)


def with_status(report: Report, status: str) -> set[str]:
    return {outcome.id for outcome in report.clauses if outcome.status == status}


def about(report: Report, clause: str) -> str:
    """The note that gives the reason why a clause was not examined."""
    (note,) = [note for note in report.notes if clause in note.replace(",", " ").replace(":", " ").split()]
    return note


# ── nothing to examine ──


def test_a_tool_that_declines_is_unchecked_and_every_missing_clause_is_named(tmp_path):
    report = check(write_module(tmp_path, SOUND_TOOL.replace(MOUNTED, "return None")), backends=["asyncio"])
    assert report.verdict == "unchecked", str(report)
    missing = {outcome.id for outcome in report.clauses if outcome.status == "not_checked"} - {"A18"}
    assert {"T1", "T5", "A8", "A17"} <= missing
    note = about(report, "T5")
    assert note.startswith("mount declined")
    assert missing <= set(note.partition("not examined: ")[2].split(", ")) | {"A18"}


@pytest.mark.parametrize("clause", ["T11", "T14"])
def test_a_recommended_clause_alone_conforms_when_it_is_kept(tmp_path, clause):
    report = check(write_module(tmp_path, SOUND_TOOL), only=[clause])
    assert report.ok, str(report)
    assert clause in with_status(report, "kept")


@pytest.mark.slow
def test_a_run_of_some_clauses_is_judged_by_these_alone(tmp_path):
    always_fails = SOUND_TOOL.replace(
        "ToolResult(success=True, output=text)", "ToolResult(success=False, error={'m': 1})"
    )
    file = write_module(tmp_path, always_fails)
    assert check(file, only=["T5"], backends=["asyncio"]).verdict == "conforms"
    assert check(file, only=["T9"], backends=["asyncio"]).verdict == "unchecked"


# ── no call succeeds ──

PICKY_TOOL = SOUND_TOOL.replace("if not isinstance(text, str):", 'if text != "open sesame":')


def test_a_tool_whose_calls_all_fail_is_unchecked(tmp_path):
    report = check(write_module(tmp_path, PICKY_TOOL), backends=["trio"])
    assert report.verdict == "unchecked", str(report)
    assert report.violations == []
    note = about(report, "T9")
    assert "no call succeeded" in note
    assert "examples in the schema" in note
    assert {"T8", "T9", "T10", "A9", "A10"} <= with_status(report, "not_checked")
    assert {"T5", "T6", "A16"} <= with_status(report, "kept")


@pytest.mark.slow
@pytest.mark.parametrize("keyword", ['"examples": ["open sesame"]', '"default": "open sesame"'])
def test_examples_and_defaults_of_the_schema_lead_to_calls_that_succeed(tmp_path, keyword):
    source = PICKY_TOOL.replace('{"type": "string"}', '{"type": "string", ' + keyword + "}")
    report = check(write_module(tmp_path, source), only=["T9", "T10", "A10"], backends=["trio"])
    assert report.ok, str(report)


PROVIDER = """
    from amplifier import ChatResponse, ProviderInfo
    from amplifier.errors import AuthenticationError

    __amplifier_module_type__ = "provider"


    class Closed:
        name = "closed"

        def get_info(self):
            return ProviderInfo(id="closed", display_name="Closed")

        async def list_models(self):
            return []

        async def complete(self, request, **kwargs):
            raise AuthenticationError("no key", provider="closed")

        def parse_tool_calls(self, response):
            return list(response.tool_calls or [])


    async def mount(coordinator, config):
        coordinator.mount("providers", Closed())
"""


def test_a_provider_that_never_answers_is_unchecked(tmp_path):
    report = check(write_module(tmp_path, PROVIDER, "provider_closed.py"), backends=["asyncio"])
    assert report.verdict == "unchecked", str(report)
    missing = with_status(report, "not_checked")
    assert {"P3", "P4", "P5", "P6", "P7", "P8", "P9", "P14", "P23", "A7", "A8", "A9", "A10"} <= missing
    assert {"P1", "P2", "P10", "P12", "P13"} <= with_status(report, "kept")
    assert "no call succeeded" in about(report, "P5")


# ── misuse of the coordinator ──


def mounting(module_type: str, statement: str) -> str:
    return f'__amplifier_module_type__ = "{module_type}"\n\n\nasync def mount(coordinator, config):\n    {statement}\n'


@pytest.mark.parametrize(
    ("module_type", "clause", "statement"),
    [
        ("tool", "T4", 'await coordinator.mount("tool", object(), name="x")'),
        ("tool", "T4", 'await coordinator.mount("hooks", object(), name="x")'),
        ("provider", "P2", 'await coordinator.mount("provider", object(), name="x")'),
        ("context", "C2", 'await coordinator.mount("session", object())'),
        ("orchestrator", "O2", 'await coordinator.mount("orchestrators", object())'),
        ("hook", "H2", 'await coordinator.mount("hooks", object(), name="x")'),
        ("hook", "H2", 'await coordinator.mount("tools", object(), name="x")'),
    ],
)
def test_a_mount_that_misuses_the_coordinator_breaks_the_clause_of_its_mount_point(
    tmp_path, module_type, clause, statement
):
    file = write_module(tmp_path, mounting(module_type, statement), f"{module_type}_x.py")
    report = check(file, module_type=module_type, only=[clause], backends=["trio"])
    assert {found.clause for found in report.violations} == {clause}, str(report)
    assert report.verdict == "violations"
    assert "give the configuration" not in str(report)


def test_an_error_of_the_module_itself_is_no_misuse(tmp_path):
    file = write_module(tmp_path, mounting("tool", "raise ValueError('no key')"), "tool_x.py")
    report = check(file, only=["T4"], backends=["trio"])
    assert report.verdict == "unchecked", str(report)
    assert "it could not be mounted on trio: mount raised ValueError: no key; give the configuration" in str(report)


def test_a_plain_mount_that_the_source_does_not_show_is_a_violation(tmp_path):
    plain = SOUND_TOOL.replace("async def mount(", "def made(") + "\n\n    mount = made\n"
    report = check(write_module(tmp_path, plain), only=["A3"], backends=["asyncio"])
    assert [found.clause for found in report.violations] == ["A3"], str(report)
    assert "plain function" in report.violations[0].what


# ── the plan ──


@pytest.mark.parametrize("entry", ['{"module": "tool-tood"}', '"tool-tood"'])
def test_a_misspelt_module_of_the_plan_is_rejected_with_the_nearest_name(entry, capsys):
    plan = '{"tools": [' + entry + "]}"
    assert main(["module", "validate", "tool-task", "--plan", plan, "--only", "T1"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "$.tools[0] names the module 'tool-tood', which is not installed; did you mean 'tool-todo'?" in printed.err


# ── examinations that are cut short ──


def in_execute(statement: str) -> str:
    """A tool that does something else before it answers."""
    body = indent(dedent(statement).strip(), " " * 12).strip()
    return SOUND_TOOL.replace('text = input.get("text")', f'text = input.get("text")\n            {body}')


def test_inputs_on_which_a_tool_hangs_leave_it_unchecked(tmp_path):
    source = in_execute(
        """
        if not isinstance(text, str):
            import anyio
            await anyio.Event().wait()
        """
    )
    report = check(write_module(tmp_path, source), only=["T5"], backends=["asyncio"])
    assert report.verdict == "unchecked", str(report)
    assert "calls did not return, so no more were made" in about(report, "T5")


@pytest.mark.long
@pytest.mark.parametrize("examined_on", ["asyncio", "trio"])
def test_a_hanging_call_is_named_and_so_is_what_could_not_be_examined_for_it(tmp_path, examined_on):
    source = in_execute("import time; time.sleep(3600)")
    report = check(write_module(tmp_path, source), only=["A7", "A9", "T9", "T5"], backends=[examined_on])
    assert {found.clause for found in report.violations} == {"A17"}, str(report)
    assert any("blocked for good in execute" in found.what for found in report.violations), str(report)
    assert with_status(report, "kept") & {"T5", "T9"} == set()
    assert "could not be completed" in str(report) or "the module has hung" in str(report)


SHIELDED_WAIT = """
    import anyio
    with anyio.CancelScope(shield=True):
        await anyio.Event().wait()
"""


@pytest.mark.parametrize("examined_on", ["asyncio", "trio"])
def test_a_call_that_can_never_end_is_found_without_waiting_for_it(tmp_path, examined_on):
    report = check(write_module(tmp_path, in_execute(SHIELDED_WAIT)), only=["A7", "A8"], backends=[examined_on])
    assert "A8" in {found.clause for found in report.violations}, str(report)
    assert any("execute" in found.what and "had not ended" in found.what for found in report.violations), str(report)


def test_a_tool_that_waits_for_timers_is_examined_completely(tmp_path):
    report = check(write_module(tmp_path, in_execute("import anyio; await anyio.sleep(20)")), only=["T5", "T9", "A7"])
    assert report.ok, str(report)


# ── the working directory ──


def test_nothing_is_left_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check("tool-todo", only=["T5"], backends=["asyncio"])
    assert report.ok, str(report)
    assert list(tmp_path.iterdir()) == []
