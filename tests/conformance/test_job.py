"""What is asked of the kit: a job crosses to the worker as JSON, a replay token holds a step and its case, and unknown names are rejected."""

from __future__ import annotations

import re

import pytest

from amplifier.conformance import check_module
from amplifier.conformance.checks.registry import CHECKS
from amplifier.conformance.engine.job import (
    Job,
    expanded,
    read_replay_token,
    replay_token,
    require_packages,
    shortened,
)
from amplifier.conformance.suites import conformance_tests
from amplifier.conformance.target.locate import find_target
from amplifier.errors import AmplifierError, MissingExtraError, ModuleNotFoundError
from amplifier.models import from_json, to_json
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


@pytest.mark.parametrize("write", [write_module, write_project])
def test_a_job_round_trips_through_json_with_its_target(tmp_path, write):
    target = find_target(write(tmp_path, SOUND_TOOL))
    job = Job(
        target=target,
        config={"a": [1, None]},
        backends=["trio"],
        only=["T5"],
        skip=["tool.is_a_tool:trio"],
    )
    assert from_json(Job, to_json(job)) == job


@pytest.mark.parametrize("case", [None, {"tool": "echo", "inputs": [{"text": "é?"}]}, [1.5, "a:b"]])
def test_a_replay_token_round_trips(case):
    assert read_replay_token(replay_token("tool.is_a_tool:trio", case)) == (
        "tool.is_a_tool:trio",
        case,
    )


def test_a_long_case_is_kept_in_a_file_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    token = replay_token("tool.is_a_tool:trio", {"words": ["long"] * 50})
    short = shortened(token)
    assert len(short) < 45
    assert expanded(short) == token
    assert [file.parent for file in tmp_path.rglob("*.txt")] == [tmp_path / "amplifier" / "cases"]
    plain = replay_token("tool.is_a_tool:trio", {"listed": 0})
    assert shortened(plain) == expanded(plain) == plain
    with pytest.raises(ValueError, match="the case is not in"):
        expanded("tool.is_a_tool:trio:case-0000000000")


@pytest.mark.parametrize("text", ["", "tool.is_a_tool:trio", "tool.is_a_tool:trio:bnVsb"])
def test_a_text_that_is_no_token_raises_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 — several kinds, depending on what is wrong
        read_replay_token(text)


def test_a_job_selects_checks_by_name_by_clause_or_by_its_token():
    target = find_target("tool-todo")
    by_name = Job(target=target, only=["tool.is_a_tool"])
    by_clause = Job(target=target, only=["T5"])
    replayed = Job(target=target, replay=replay_token("tool.answers_inputs:trio", None))
    assert [name for name, check in CHECKS.items() if by_name.selects(check)] == ["tool.is_a_tool"]
    assert {name for name, check in CHECKS.items() if by_clause.selects(check)} == {
        name for name, check in CHECKS.items() if "T5" in check.clauses
    }
    assert [name for name, check in CHECKS.items() if replayed.selects(check)] == [
        "tool.answers_inputs"
    ]
    assert all(Job(target=target).selects(check) for check in CHECKS.values())


@pytest.mark.parametrize("package", ["hypothesis", "jsonschema_rs", "trio"])
async def test_a_missing_package_of_the_extra_is_named_before_running(package, monkeypatch):
    monkeypatch.setattr(
        "amplifier.conformance.engine.job.find_spec",
        lambda name: None if name == package else "there",
    )
    with pytest.raises(MissingExtraError) as refused:
        await check_module("tool-todo")
    assert (refused.value.missing, refused.value.extra) == (package, "testing")
    with pytest.raises(MissingExtraError, match=f"{package} is not installed"):
        conformance_tests("tool-todo").clauses()


async def test_static_checks_need_no_extra_and_asyncio_needs_no_trio(monkeypatch):
    monkeypatch.setattr("amplifier.conformance.engine.job.find_spec", lambda name: None)
    assert (await check_module("tool-todo", static=True)).ok
    monkeypatch.setattr(
        "amplifier.conformance.engine.job.find_spec",
        lambda name: None if name == "trio" else "there",
    )
    require_packages(["asyncio"])
    with pytest.raises(MissingExtraError, match="trio"):
        require_packages(["asyncio", "trio"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"only": ["T99"]}, "only 'T99': there is no such clause; did you mean 'T9'"),
        ({"only": ["T5", "t6"]}, "only 't6': there is no such clause; did you mean 'T6'?"),
        (
            {"only": ["spoon"]},
            "only 'spoon': there is no such clause; expected a clause such as 'T5' or a check such as",
        ),
        (
            {"only": ["tool.answer_inputs"]},
            "only 'tool.answer_inputs': there is no such check; did you mean 'tool.answers_inputs'",
        ),
        ({"only": "T5"}, "only is the text 'T5'; expected a list of clauses or checks: ['T5']"),
        ({"only": ["P5"]}, "only 'P5': this is not looked at in a module of the type 'tool'"),
        ({"only": ["A2", "P5"]}, "only 'P5': this is not looked at in a module of the type 'tool'"),
        ({"only": ["provider.is_a_provider"]}, "'provider.is_a_provider': there is no such check"),
        (
            {"only": ["T5"], "static": True},
            "only 'T5': this takes running the module; leave static out",
        ),
        (
            {"replay": "nonsense"},
            "replay 'nonsense' is not what a report printed behind --replay; copy it whole",
        ),
        (
            {"replay": "tool.is_a_tool:asyncio"},
            "is not what a report printed behind --replay; copy it whole",
        ),
        (
            {"replay": "tool.is_a_tool:asyncio:bnVsb"},
            "is not what a report printed behind --replay; copy it whole",
        ),
        (
            {"replay": "tool.is_tool:asyncio:bnVsbA"},
            "there is no check 'tool.is_tool'; did you mean 'tool.is_a_tool'",
        ),
        (
            {"replay": "hook.registers_well:trio:bnVsbA"},
            "this is not looked at in a module of the type 'tool'",
        ),
        (
            {"replay": "tool.is_a_tool:trio:bnVsbA", "backends": ["asyncio"]},
            "is for trio; expected one for asyncio",
        ),
        (
            {"replay": "tool.is_a_tool:trio:bnVsbA", "static": True},
            "this takes running the module; leave static out",
        ),
        ({"backends": ["curio"]}, "backends holds 'curio'; expected 'asyncio' or 'trio'"),
        ({"backends": "trio"}, "backends is the text 'trio'; expected a list such as ['trio']"),
        (
            {"backends": []},
            "backends is empty; expected 'asyncio', 'trio' or both; static=True only reads the module",
        ),
    ],
)
async def test_an_unknown_or_inapplicable_selection_is_rejected_with_what_was_expected(
    options, complaint
):
    with pytest.raises(ValueError, match=re.escape(complaint)) as refused:
        await check_module("tool-todo", **options)
    assert isinstance(refused.value, AmplifierError)


async def test_a_selection_is_checked_again_when_only_importing_shows_the_type(tmp_path):
    source = SOUND_TOOL.replace(
        '__amplifier_module_type__ = "tool"', '__amplifier_module_type__ = "".join(["tool"])'
    )
    with pytest.raises(
        ValueError, match="only 'P5': this is not looked at in a module of the type 'tool'"
    ):
        await check_module(write_module(tmp_path, source, "echo.py"), only=["P5"])


async def test_a_missing_path_is_reported_as_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError) as refused:
        await check_module("shout.py")
    assert str(refused.value).startswith(
        f"there is no file or folder {str(tmp_path / 'shout.py')!r}; expected a folder"
    )
