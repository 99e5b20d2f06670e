"""The nearest known name: generous in suggestions, strict where it decides, and warnings at the caller's line."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._internal.spelling import (
    did_you_mean,
    misspelt,
    misspelt_key,
    nearest,
    nearest_names,
    suggestion,
    warn_caller,
)
from amplifier.errors import MisspellingWarning

SECTIONS = frozenset(
    {"session", "orchestrator", "context", "providers", "tools", "hooks", "agents"}
)
ENTRY = frozenset({"module", "source", "config", "instance_id", "on_failure"})
FIELDS = frozenset({"success", "output", "error", "content", "reason", "raw", "id"})


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("hoks", SECTIONS, "hooks"),
        ("hoooks", SECTIONS, "hooks"),
        ("hokos", SECTIONS, "hooks"),
        ("hook", SECTIONS, "hooks"),
        ("Hooks", SECTIONS, "hooks"),
        ("yools", SECTIONS, "tools"),
        ("provdrs", SECTIONS, None),
        ("provders", SECTIONS, "providers"),
        ("providesr", SECTIONS, "providers"),
        ("orchestrater", SECTIONS, "orchestrator"),
        ("orkestrator", SECTIONS, "orchestrator"),
        ("confg", ENTRY, "config"),
        ("moduel", ENTRY, "module"),
        ("on-failure", ENTRY, "on_failure"),
        ("onFailure", ENTRY, "on_failure"),
        ("sucess", FIELDS, "success"),
        ("raeson", FIELDS, "reason"),
        ("rwa", FIELDS, "raw"),
        ("ID", FIELDS, "id"),
    ],
)
def test_misspelling_matches_known_name(name, known, meant):
    assert misspelt(name, known) == meant


@pytest.mark.parametrize(
    ("name", "known"),
    [
        # Keys that plans of published applications carry.
        *(
            (name, SECTIONS)
            for name in (
                "spawn",
                "profile",
                "bundle",
                "meta",
                "name",
                "description",
                "system",
                "exclude",
            )
        ),
        *(
            (name, SECTIONS)
            for name in (
                "session_id",
                "settings",
                "events",
                "skills",
                "modes",
                "instruction",
                "includes",
            )
        ),
        *(
            (name, ENTRY)
            for name in (
                "mode",
                "id",
                "name",
                "priority",
                "resource",
                "on",
                "model",
                "version",
                "enabled",
            )
        ),
        ("on_fail", ENTRY),
        *(
            (name, FIELDS)
            for name in ("metadata", "is_error", "message", "ip", "is", "tool_calls", "row_count")
        ),
        ("h" * 10_000, SECTIONS),
        (5, SECTIONS),
        (None, SECTIONS),
        ("", SECTIONS),
    ],
)
def test_unrelated_name_is_not_misspelling(name, known):
    assert misspelt(name, known) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_fail", "on_failure"),
        ("onFail", "on_failure"),
        ("instance", "instance_id"),
        ("conf", "config"),
    ]
    + [
        (name, None) for name in ("on", "con", "inst", "module_id", "fail", "", 5, None, "x" * 1000)
    ],
)
def test_shortened_key_is_recognised(name, meant):
    assert misspelt_key(name, ENTRY) == meant


@given(st.sampled_from(sorted(SECTIONS)), st.data())
def test_one_slip_is_always_noticed(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("abcxyz"))
    slips = [
        name[:at] + name[at + 1 :],
        name[:at] + letter + name[at:],
        name[:at] + letter + name[at + 1 :],
    ]
    if at:
        slips.append(name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :])
    for slip in slips:
        assert misspelt(slip, SECTIONS) == name


@given(st.text(max_size=12))
def test_any_text_yields_known_name_or_none(name):
    assert misspelt(name, SECTIONS) in {None, *SECTIONS}
    assert nearest(name, SECTIONS) in {None, *SECTIONS}


def test_suggestion_ignores_case():
    assert nearest("TOOL-SERACH", ["tool-search", "tool-todo"]) == "tool-search"
    assert nearest("tool-serach", ["Tool-Search"]) == "Tool-Search"
    assert nearest("zzz", ["tool-search"]) is None
    assert nearest(5, ["5"]) is None
    assert nearest("a" * 10_000, ["a" * 10_000]) is None
    assert nearest("profile", ["providers"]) == "providers"
    assert nearest("profile", ["providers"], cutoff=0.75) is None
    assert nearest_names("tool", ["tool-a", "tool-b", "tool-c"], most=2) == ["tool-c", "tool-b"]


def test_suggestion_ends_sentence():
    assert suggestion("tols", SECTIONS) == "; did you mean 'tools'?"
    assert suggestion("zzz", SECTIONS) == ""
    assert did_you_mean("tools", "hooks") == "did you mean 'tools' or 'hooks'?"


INNER = """
def inner(warn):
    return warn("a message", "amplifier.")
"""


def test_warning_points_at_first_outside_line():
    names: dict[str, Any] = {"__name__": "amplifier.kernel.planted"}
    exec(INNER, names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        here = sys._getframe().f_lineno + 1
        names["inner"](warn_caller)
    [warning] = caught
    assert (warning.category, str(warning.message)) == (MisspellingWarning, "a message")
    assert (warning.filename, warning.lineno) == (__file__, here)
