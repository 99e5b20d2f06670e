"""Nothing is called that was not permitted, and secrets stay out of reports."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.conformance.tool_servers.permission import PermissionProblem, decide
from amplifier.conformance.tool_servers.subject import Subject, SubjectProblem

TOOLS: list[dict[str, Any]] = [
    {"name": "read", "annotations": {"readOnlyHint": True}},
    {"name": "write", "annotations": {"readOnlyHint": False}},
    {"name": "delete"},
]


def test_read_only_tools_of_a_command_are_called():
    found = decide(TOOLS, trusts_hints=True)
    assert (found.called, found.undecided) == (("read",), ("write", "delete"))


def test_no_tool_of_a_url_is_called():
    assert decide(TOOLS, trusts_hints=False).called == ()


def test_skip_wins_over_call_all():
    found = decide(TOOLS, call_all=True, skip=["delete"], trusts_hints=True)
    assert (found.called, found.skipped, found.undecided) == (("read", "write"), ("delete",), ())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(PermissionProblem, match="did you mean 'delete'"):
        decide(TOOLS, call=["delet"], trusts_hints=True)


def test_secrets_are_in_no_text(monkeypatch):
    monkeypatch.setenv("SERVICE_KEY", "hunter2-hunter2")
    subject = Subject(kind="command", target="server --api-key abcdef123", env=("SERVICE_KEY",))
    assert subject.without_secrets("it said hunter2-hunter2") == "it said [REDACTED]"
    assert "abcdef123" not in " ".join(subject.command())
    remote = Subject(
        kind="url",
        target="https://user:pass1234@example.org/mcp?key=s3cr3t99",
        headers={"Authorization": "Bearer ${SERVICE_KEY}", "X-Own": "plain-value-1"},
        arguments={"*": {"password": "opensesame"}},
    )
    line = " ".join(remote.command("arguments.json"))
    assert "Authorization=Bearer ${SERVICE_KEY}" in line
    assert not [
        secret for secret in ("pass1234", "s3cr3t99", "hunter2", "plain-value-1") if secret in line
    ]
    assert remote.shown_input("tool", {"password": "opensesame"}) == {
        "password": "(from --arguments)"
    }


def test_a_program_gets_path_lang_and_named_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("GIVEN", "1")
    monkeypatch.setenv("HIDDEN", "2")
    found = Subject(kind="command", target="server", env=("GIVEN",)).environment(tmp_path)
    assert set(found) - {"LANG"} == {"PATH", "GIVEN", "HOME"}
    assert found["HOME"] == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "command", "target": "server", "headers": {"A": "b"}}, "--header is for a URL"),
        (
            {"kind": "command", "target": "server", "env": ("NO_SUCH_VARIABLE",)},
            "there is no such variable",
        ),
        ({"kind": "command", "target": "server 'open"}, "is not a command line"),
        ({"kind": "python", "target": "package"}, "is not package:object"),
    ],
)
def test_what_cannot_be_examined_is_refused(options, words):
    with pytest.raises(SubjectProblem, match=words):
        Subject(**options)
