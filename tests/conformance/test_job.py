"""A job crosses to the worker process as JSON, with the located target in it; a replay token holds a step and its case."""

from __future__ import annotations

import pytest

from amplifier.conformance.checks import all_checks as _all_checks  # noqa: F401 — importing the checks registers them
from amplifier.conformance.engine.job import Job, read_replay_token, replay_token
from amplifier.conformance.harness.check_registry import CHECKS
from amplifier.conformance.target.locate import find_target
from amplifier.models import from_json, to_json
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


@pytest.mark.parametrize("write", [write_module, write_project])
def test_a_job_round_trips_through_json_with_its_target(tmp_path, write):
    target = find_target(write(tmp_path, SOUND_TOOL))
    job = Job(target=target, config={"a": [1, None]}, backends=["trio"], only=["T5"], skip=["tool.is_a_tool:trio"])
    assert from_json(Job, to_json(job)) == job


@pytest.mark.parametrize("case", [None, {"tool": "echo", "inputs": [{"text": "é?"}]}, [1.5, "a:b"]])
def test_a_replay_token_round_trips(case):
    assert read_replay_token(replay_token("tool.is_a_tool:trio", case)) == ("tool.is_a_tool:trio", case)


@pytest.mark.parametrize("text", ["", "tool.is_a_tool:trio", "tool.is_a_tool:trio:bnVsb"])
def test_a_text_that_is_no_token_raises_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 — several kinds, depending on what is wrong
        read_replay_token(text)


def test_a_job_selects_checks_by_name_by_clause_or_by_its_token():
    target = find_target("tool-todo")
    by_name = Job(target=target, only=["tool.is_a_tool"])
    by_clause = Job(target=target, only=["T5"])
    replayed = Job(target=target, replay=replay_token("tool.answers_listed_inputs:trio", None))
    assert [name for name, check in CHECKS.items() if by_name.selects(check)] == ["tool.is_a_tool"]
    assert {name for name, check in CHECKS.items() if by_clause.selects(check)} == {
        name for name, check in CHECKS.items() if "T5" in check.clauses
    }
    assert [name for name, check in CHECKS.items() if replayed.selects(check)] == ["tool.answers_listed_inputs"]
    assert all(Job(target=target).selects(check) for check in CHECKS.values())
