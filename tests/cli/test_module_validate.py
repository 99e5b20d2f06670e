"""`amplifier module validate`: unchecked clauses are not reported as kept, and missing extras are not blamed on the module."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests._support.terminal import open_terminal, run_without


@pytest.mark.slow
@pytest.mark.parametrize("package", ["hypothesis", "trio"])
def test_missing_extra_is_not_blamed_on_module(package, home, workdir):
    finished = run_without(package, "module", "validate", "tool-todo", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "examining tool-todo\n"
        f"amplifier: examining a module needs an optional part ({package} is not installed); "
        "install it with: pip install 'amplifier[testing]'\n"
    )


def test_static_checks_need_no_extra(cli, monkeypatch):
    monkeypatch.setattr("amplifier.conformance.engine.job.find_spec", lambda name: None)
    cli("module", "validate", "tool-todo", "--static")
    assert (
        "hypothesis is not installed"
        in cli("module", "validate", "tool-todo", "--only", "T1", code=2).err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--only", "T99"], "only 'T99': there is no such clause; did you mean 'T9'"),
        (
            ["nowhere", "--html", "no/such/folder/report.html"],
            "there is no folder 'no/such/folder'; make it first",
        ),
        (
            ["nowhere", "--junit", "no/such/j.xml"],
            "--junit 'no/such/j.xml': there is no folder 'no/such'",
        ),
        (
            ["nowhere", "--html", "x", "--junit", "./x"],
            "--html and --junit name the same file 'x'; give each its own",
        ),
        (
            ["tool-todo", "--only", "P5"],
            "only 'P5': this is not looked at in a module of the type 'tool'",
        ),
        (
            ["tool-todo", "--replay", "tool.is_a_tool:trio:bnVsbA", "--backend", "asyncio"],
            "expected one for asyncio",
        ),
    ],
)
def test_invalid_options_are_rejected_before_running(arguments, message, cli):
    printed = cli("module", "validate", *arguments, code=2)
    assert printed.out == ""
    assert message in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-module"], "'no-such-module' is neither a folder, a .py file"),
        (["tool-todo", "--plan", '{"tools": ["tool-tood"]}'], "did you mean 'tool-todo'?"),
        (["tool-todo", "--config", "{"], "--config is not JSON"),
        (["tool-todo", "--only", "T99"], "there is no such clause"),
    ],
)
def test_failing_command_is_reported_in_every_form(arguments, message, cli, tmp_path):
    junit = tmp_path / "report.xml"
    printed = cli("module", "validate", *arguments, "--junit", str(junit), code=2)
    assert message in printed.err
    assert printed.out == ""
    suite = ElementTree.fromstring(junit.read_text(encoding="utf-8"))
    assert suite.attrib["errors"] == "1"
    assert message in "".join(suite.itertext())


@pytest.mark.slow
def test_unchecked_clauses_are_not_reported_as_kept(cli):
    first, *others, last = cli(
        "module", "validate", "provider-mock", "--type", "tool", "--only", "T5", code=2
    ).out.splitlines()
    assert (
        first
        == "provider-mock (tool): unchecked; too little of it could be examined; 42 clauses not examined"
    )
    assert "not examined: A1 to A26, T1 to T16; the examination was restricted to T5" in others
    assert last.startswith(
        "0 of 42 clauses kept, 42 not examined, 0 violations, 0 recommendations ("
    )
    assert any(
        line.startswith("note: mount gave nothing that can be used as a tool") for line in others
    )


def test_part_of_contract_can_be_checked(cli):
    assert "  kept " not in cli("module", "validate", "tool-todo", "--only", "A2", "--static").out
    shown = cli(
        "module", "validate", "tool-todo", "--only", "A2", "--static", "-v"
    ).out.splitlines()
    assert [line.split()[:2] for line in shown if line.startswith("  kept ")] == [["kept", "A2"]]
    assert sum(line.startswith("  not examined ") for line in shown) == 41


MUTE = '__amplifier_module_type__ = "tool"\n\n\ndef mount(coordinator, config):\n    pass\n'


def test_combined_outputs_keep_verdict_exit_code(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    Path("tool_mute.py").write_text(MUTE)
    files = ["--html", "r.html", "--junit", "r.xml"]
    shown = cli("module", "validate", "tool_mute.py", "--static", *files, code=1).out.splitlines()
    assert (
        shown[0]
        == "tool-mute (tool): violations; it breaks 1 required clause; 37 clauses not examined"
    )
    assert "    look at: tool_mute.py:4" in shown
    assert "<title>tool-mute: violations</title>" in Path("r.html").read_text()
    assert ElementTree.parse("r.xml").getroot().get("failures") == "1"


def test_unwritable_file_is_reported_after_report(tmp_path, cli):
    (tmp_path / "tool_mute.py").write_text(MUTE)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    printed = cli(
        "module",
        "validate",
        str(tmp_path / "tool_mute.py"),
        "--static",
        "--junit",
        str(loop),
        code=2,
    )
    assert "A3" in printed.out
    assert f"--junit {str(loop)!r} cannot be written" in printed.err


@pytest.mark.slow
def test_progress_is_removed_before_report(tmp_path):
    with open_terminal(
        "module",
        "validate",
        "tool-todo",
        "--only",
        "T1",
        "--backend",
        "trio",
        home=tmp_path,
        cwd=tmp_path,
        size=(24, 60),
    ) as terminal:
        terminal.expect("0/1 tool.is_a_tool:trio", "tool-todo (tool): conforms")
        terminal.ends(0)
    erased, report = terminal.screen.rfind("\x1b[2K"), terminal.screen.find("tool-todo (tool):")
    assert 0 <= erased < report


def test_both_command_names_work(cli):
    for name in (("validate", "module"), ("module", "validate")):
        cli(*name, "tool-todo", "--static")
        assert cli(*name, "--help").out.count("--debug") == 1
