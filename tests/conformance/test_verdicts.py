"""Verdicts: a module conforms only if every required clause was examined, on every backend that was asked for."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from amplifier.cli import main
from amplifier.conformance import Report
from tests._support.backends import by_turns
from tests.conformance.modules import SOUND_TOOL, check, with_status, write_module

MOUNTED = 'coordinator.mount("tools", Echo())'


def about(report: Report, clause: str) -> str:
    """The note that gives the reason why a clause was not examined."""
    (note,) = [
        note for note in report.notes if clause in note.replace(",", " ").replace(":", " ").split()
    ]
    return note


# ── nothing to examine ──


def test_a_tool_that_declines_is_unchecked_and_every_missing_clause_is_named(tmp_path):
    report = check(
        write_module(tmp_path, SOUND_TOOL.replace(MOUNTED, "return None")), backends=["asyncio"]
    )
    assert report.verdict == "unchecked", str(report)
    missing = {outcome.id for outcome in report.clauses if outcome.status == "not_checked"} - {
        "A18"
    }
    assert {"T1", "T5", "A8", "A17"} <= missing
    note = about(report, "T5")
    assert note.startswith("mount declined")
    assert missing <= set(note.partition("not examined on asyncio: ")[2].split(", ")) | {"A18"}


def test_withheld_key_of_the_caller_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SESAME_API_KEY", "the real one")
    lines = ["import os", 'if os.environ.get("SESAME_API_KEY") != "the real one":', "    return"]
    needs_key = "".join(f"{line}\n        " for line in lines)
    source = SOUND_TOOL.replace(MOUNTED, needs_key + MOUNTED)
    report = check(write_module(tmp_path, source), backends=["asyncio"], only=["T5"])
    assert report.verdict == "unchecked", str(report)
    assert any(note.startswith("SESAME_API_KEY is set here") for note in report.notes)
    assert "the real one" not in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("clause", ["T11", "T14"])
def test_a_recommended_clause_alone_conforms_when_it_is_kept(tmp_path, clause):
    report = check(write_module(tmp_path, SOUND_TOOL), only=[clause], backends=["trio"])
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

# The word is "open sesame", which the source does not hold.
PICKY_TOOL = SOUND_TOOL.replace(
    "if not isinstance(text, str):",
    "if not isinstance(text, str) or sum(n * ord(c) for n, c in enumerate(text)) != 5525:",
).replace("text: expected a string", "nothing opens")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_provider_that_never_answers_is_unchecked(tmp_path):
    report = check(write_module(tmp_path, PROVIDER, "provider_closed.py"), backends=["asyncio"])
    assert report.verdict == "unchecked", str(report)
    missing = with_status(report, "not_checked")
    assert {
        "P3",
        "P4",
        "P5",
        "P6",
        "P7",
        "P8",
        "P9",
        "P14",
        "P23",
        "A7",
        "A8",
        "A9",
        "A10",
    } <= missing
    assert {"P1", "P2", "P10", "P12", "P13"} <= with_status(report, "kept")
    assert "no call succeeded" in about(report, "P5")


# ── misuse of the coordinator ──


def tool_that(statement: str) -> str:
    return f'__amplifier_module_type__ = "tool"\n\n\nasync def mount(coordinator, config):\n    {statement}\n'


@pytest.mark.slow
def test_a_mount_that_misuses_the_coordinator_needs_no_configuration(tmp_path):
    file = write_module(
        tmp_path, tool_that('await coordinator.mount("hooks", object(), name="x")'), "tool_x.py"
    )
    report = check(file, only=["T4"], backends=["trio"])
    assert {found.clause for found in report.violations} == {"T4"}, str(report)
    assert "give the configuration" not in str(report)


def test_an_error_of_the_module_itself_is_no_misuse(tmp_path):
    file = write_module(tmp_path, tool_that("raise ValueError('no key')"), "tool_x.py")
    report = check(file, only=["T4"], backends=["trio"])
    assert report.verdict == "unchecked", str(report)
    assert (
        "it could not be mounted on trio: mount raised ValueError: no key; give the configuration"
        in str(report)
    )


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
    assert (
        "$.tools[0]: no module 'tool-tood' is installed; did you mean 'tool-todo'?" in printed.err
    )


# ── examinations that are cut short ──


def in_execute(statement: str) -> str:
    """A tool that does something else before it answers."""
    body = indent(dedent(statement).strip(), " " * 12).strip()
    return SOUND_TOOL.replace(
        'text = input.get("text")', f'text = input.get("text")\n            {body}'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("waits", "examined_on"), by_turns(["anyio.Event().wait()", "anyio.sleep_forever()"])
)
def test_inputs_on_which_a_tool_never_returns_break_its_contract(tmp_path, waits, examined_on):
    source = in_execute(
        f"""
        if not isinstance(text, str):
            import anyio
            await {waits}
        """
    )
    report = check(write_module(tmp_path, source), only=["T5"], backends=[examined_on])
    assert {found.clause for found in report.violations} == {"T5"}, str(report)
    assert all("execute never returns" in found.what for found in report.violations), str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("waits", "examined_on"),
    by_turns(["while True: await anyio.sleep(1)", "await anyio.sleep(1e9)"]),
)
def test_a_tool_that_polls_or_sleeps_for_long_is_unchecked_and_not_blamed(
    tmp_path, waits, examined_on
):
    source = in_execute(f"import anyio\n{waits}")
    report = check(write_module(tmp_path, source), only=["T5"], backends=[examined_on])
    assert report.verdict == "unchecked", str(report)
    assert report.violations == []
    assert "calls did not return, so no more were made" in about(report, "T5")


SHIELDED_POLLING = """
    import anyio
    with anyio.CancelScope(shield=True):
        while True:
            await anyio.sleep(1)
"""
DEAF_LOOP = """
    import anyio
    while True:
        try:
            await anyio.sleep(1)
        except BaseException:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("statement", "examined_on"), by_turns([SHIELDED_POLLING, DEAF_LOOP]))
def test_a_call_that_goes_on_after_its_cancellation_is_not_taken_for_a_blocked_loop(
    tmp_path, statement, examined_on
):
    report = check(
        write_module(tmp_path, in_execute(statement)),
        only=["tool.is_a_tool"],
        backends=[examined_on],
    )
    assert {found.clause for found in report.violations} == {"A8"}, str(report)
    assert all(
        found.what.startswith("execute, cancelled at its deadline,") for found in report.violations
    ), str(report)


# ── findings of a step that does not come to its end ──

ENDS = {
    "hangs": "import anyio\nwith anyio.CancelScope(shield=True): await anyio.Event().wait()",
    "blocks": "import time; time.sleep(3600)",
    "ends the process": "import os; os._exit(1)",
}


@pytest.mark.slow
@pytest.mark.parametrize(("end", "examined_on"), by_turns(ENDS))
def test_what_a_step_has_found_is_kept_when_the_module_ends_its_process_later(
    tmp_path, end, examined_on
):
    statement = f"""
        if not isinstance(text, str):
{indent(ENDS[end], " " * 12)}
        return ToolResult(success=True, output={{1, 2}})
    """
    report = check(
        write_module(tmp_path, in_execute(statement)),
        only=["tool.answers_inputs"],
        backends=[examined_on],
    )
    found = {finding.clause for finding in report.violations}
    assert "T9" in found, str(report)
    assert found & {"A8", "A17"}, str(report)


# ── what a module raises instead of its cancellation ──

INSTEAD = {
    "a group": 'raise BaseExceptionGroup("two", [gone, ValueError("no")])',
    "a group around the cancellation": 'raise BaseExceptionGroup("one", [gone])',
    "an exit": "raise SystemExit(3)",
    "an error of its own": "raise Own",
}
RAISING = """
    import anyio


    class Own(BaseException): ...


    async def stopped():
        try:
            await anyio.sleep(0.01)
        except BaseException as gone:
            {instead}

"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "instead", "examined_on"),
    by_turns(
        [
            *(("mount", instead) for instead in INSTEAD),
            *(("execute", instead) for instead in reversed(INSTEAD)),
        ]
    ),
)
def test_a_cancelled_call_that_raises_something_else_breaks_its_contract(
    tmp_path, place, instead, examined_on
):
    source = in_execute("await stopped()") if place == "execute" else SOUND_TOOL
    if place == "mount":
        source = source.replace(MOUNTED, f"await stopped()\n        {MOUNTED}")
    source = dedent(RAISING.format(instead=INSTEAD[instead])) + dedent(source)
    check_name = (
        "every_module.fails_without_traces"
        if place == "mount"
        else "every_module.survives_cancellation"
    )
    report = check(write_module(tmp_path, source), only=[check_name], backends=[examined_on])
    # On trio a scope takes its own cancellation out of a group, so that nothing is left of one that holds no more.
    is_kept = examined_on == "trio" and instead == "a group around the cancellation"
    is_exit = examined_on == "asyncio" and instead == "an exit"
    expected = set() if is_kept else {"A7"}
    found = {finding.clause for finding in report.violations}
    assert found - ({"A17"} if is_exit else set()) == expected, str(report)
    assert is_exit or "could not be completed" not in str(report)


@pytest.mark.slow
def test_a_tool_that_waits_for_timers_is_examined_completely(tmp_path):
    report = check(
        write_module(tmp_path, in_execute("import anyio; await anyio.sleep(20)")),
        only=["T5", "T9", "A7"],
    )
    assert report.ok, str(report)


# ── what changes by itself ──

CLOCK = """
    import anyio
    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"
    MINUTES = [0]


    class Clock:
        name = "clock"
        description = "Shows the minute."

        def get_schema(self):
            return {"type": "object", "properties": {}}

        async def execute(self, input):
            try:
                await anyio.sleep(0.01)
            except BaseException:
                MINUTES[0] = 1
                raise
            return ToolResult(success=True, output={"minute": MINUTES[0]})


    async def mount(coordinator, config):
        coordinator.mount("tools", Clock())
"""


@pytest.mark.slow
@pytest.mark.parametrize("examined_on", ["asyncio", "trio"])
def test_a_minute_that_ends_while_a_call_is_cancelled_is_no_torn_state(tmp_path, examined_on):
    file = write_module(tmp_path, CLOCK, "tool_clock.py")
    report = check(file, only=["every_module.goes_on_as_if"], backends=[examined_on])
    assert report.violations == [], str(report)


# ── one finding again ──


@pytest.mark.slow
def test_a_replayed_finding_names_the_backend_it_ran_on(tmp_path):
    source = SOUND_TOOL.replace("output=text", "output={text}")
    file = write_module(tmp_path, source)
    found = next(
        each
        for each in check(file, only=["T9"], backends=["trio"]).violations
        if each.clause == "T9"
    )
    report = check(file, replay=found.reproduce.split()[-1])
    assert report.backends == ["trio"]
    assert with_status(report, "broken") == {"T9"}
    assert "quick on trio, seed 0" in str(report).splitlines()[-1]


# ── the working directory ──


@pytest.mark.slow
def test_nothing_is_left_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check("tool-todo", only=["T5"], backends=["asyncio"])
    assert report.ok, str(report)
    assert list(tmp_path.iterdir()) == []


# ── recommendations ──


def test_with_strict_a_broken_recommendation_counts(tmp_path):
    untyped = SOUND_TOOL.replace('__amplifier_module_type__ = "tool"', "")
    file = write_module(tmp_path, untyped)
    assert check(file, static=True).verdict != "violations"
    report = check(file, static=True, strict=True)
    assert report.verdict == "violations", str(report)
    assert [found.clause for found in report.recommendations] == ["A20"]
    assert main(["module", "validate", str(file), "--static", "--strict"]) == 1
