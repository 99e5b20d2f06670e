"""Annotations for GitHub Actions: their form, their escapes, their paths."""

from __future__ import annotations

import re

from amplifier.conformance.report.ci import github_annotations, without_commands
from tests.conformance.report.reports import HOSTILE, finding, report

_COMMAND = re.compile(r"::(?P<name>error|notice)(?: (?P<properties>[^:]*))?::(?P<data>.*)", re.ASCII)


def read(line: str) -> tuple[str, dict[str, str], str]:
    """A command as a runner reads it."""
    found = _COMMAND.fullmatch(line)
    assert found is not None, line
    pairs = dict(pair.split("=", 1) for pair in (found["properties"] or "").split(",") if pair)
    return found["name"], {key: unescaped(value) for key, value in pairs.items()}, unescaped(found["data"])


def unescaped(text: str) -> str:
    for code, sign in (("%3A", ":"), ("%2C", ","), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, sign)
    return text


def test_an_annotation_names_file_line_clause_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    file = tmp_path / "src" / "a, b: 100%.py"
    (tmp_path / ".git").mkdir()
    file.parent.mkdir()
    file.touch()
    found = finding("T5", what="100%:\nno, really", location=f"{file.name}:7", file=str(file), input={"a": 1})
    (line,) = github_annotations(report(found))
    assert line.startswith("::error file=src/a%2C b%3A 100%25.py,line=7,title=T5::100%25:%0Ano, really%0Ainput: ")
    name, properties, message = read(line)
    assert name == "error"
    assert properties == {"file": "src/a, b: 100%.py", "line": "7", "title": "T5"}
    assert message.splitlines() == [
        "100%:",
        "no, really",
        "input: {'a': 1}",
        "on: asyncio",
        "fix: fix T5",
        "reproduce: amplifier module validate x --only T5",
    ]


def test_a_recommendation_is_a_notice_and_a_module_that_was_not_examined_an_error():
    shown = report(finding("T13", level="recommended"), verdict="unchecked", notes=["it could not be mounted"])
    recommendation, unchecked = map(read, github_annotations(shown))
    assert recommendation[:2] == ("notice", {"title": "T13 (recommended)"})
    assert unchecked[:2] == ("error", {"title": "tool-x: unchecked"})
    assert "note: it could not be mounted" in unchecked[2]
    assert github_annotations(report()) == []


def test_a_file_outside_every_repository_is_named_in_the_message_only(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    file = tmp_path / "x.py"
    file.touch()
    (line,) = github_annotations(report(finding(location="x.py:7", file=str(file))))
    _, properties, message = read(line)
    assert properties == {"title": "T5"}
    assert f"look at: {file}:7" in message


def test_the_checkout_of_the_job_is_the_root(tmp_path, monkeypatch):
    module = tmp_path / "checkout" / "modules" / "one"
    module.mkdir(parents=True)
    (module / ".git").mkdir()  # a repository inside the checkout
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "checkout"))
    file = module / "x.py"
    file.touch()
    (line,) = github_annotations(report(finding(location="x.py", file=str(file))))
    assert read(line)[1] == {"file": "modules/one/x.py", "title": "T5"}


def test_a_hostile_text_makes_one_command():
    found = finding(what=HOSTILE, location=f"{HOSTILE}:7", hint=HOSTILE)
    lines = github_annotations(report(found, module=HOSTILE, verdict="unchecked", notes=[HOSTILE]))
    assert len(lines) == 2
    for line in lines:
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        read(line)


def test_the_report_is_printed_where_commands_are_ignored():
    begin, *lines, end = without_commands(["::error::x"])
    token = begin.removeprefix("::stop-commands::")
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert (lines, end) == (["::error::x"], f"::{token}::")
    assert without_commands([])[0] != begin
