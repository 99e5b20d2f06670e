"""`amplifier module validate`: unchecked clauses are not reported as kept, and missing extras are not blamed on the module."""

from __future__ import annotations

import subprocess
import sys

import pytest

from amplifier.cli import main


@pytest.mark.parametrize("package", ["hypothesis", "jsonschema_rs", "trio"])
def test_a_missing_extra_is_reported_and_not_blamed_on_the_module(package):
    program = (
        f"import sys; sys.modules[{package!r}] = None; from amplifier.cli import main; "
        "sys.exit(main(['module', 'validate', 'tool-todo']))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        f"amplifier: examining a module needs an optional part ({package} is not installed); "
        "install it with: pip install 'amplifier[testing]'\n"
    )


def test_static_checks_need_no_extra(capsys, monkeypatch):
    monkeypatch.setattr("amplifier.conformance.engine.selection.find_spec", lambda name: None)
    assert main(["module", "validate", "tool-todo", "--static"]) == 0
    assert main(["module", "validate", "tool-todo", "--only", "T1"]) == 2
    assert "hypothesis is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "T99"], "only 'T99': there is no such clause; did you mean 'T9'"),
        (["--only", "T5", "--only", "t6"], "only 't6': there is no such clause; did you mean 'T6'?"),
        (["--only", "tool.is_tool"], "only 'tool.is_tool': there is no such check; did you mean 'tool.is_a_tool'"),
        (["--replay", "nonsense"], "replay 'nonsense' is not what a report printed behind --replay; copy it whole"),
        (["--replay", "tool.answers_listed_inputs:asyncio"], "is not what a report printed behind --replay"),
        (["--replay", "tool.nothing:asyncio:bnVsbA"], "there is no check 'tool.nothing'"),
        (["--html", "no/such/folder/report.html"], "there is no folder 'no/such/folder'; make it first"),
    ],
)
def test_invalid_options_are_rejected_before_running(arguments, message, capsys):
    assert main(["module", "validate", "no-such-module", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "P5"], "only 'P5': this is not looked at in a module of the type 'tool'"),
        (["--only", "T5", "--static"], "only 'T5': this takes running the module; leave static out"),
        (["--replay", "tool.is_a_tool:trio:bnVsbA", "--backend", "asyncio"], "is for trio; expected one for asyncio"),
    ],
)
def test_options_that_do_not_apply_to_the_module_are_rejected(arguments, message, capsys):
    assert main(["module", "validate", "tool-todo", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_unchecked_clauses_are_not_reported_as_kept(capsys):
    assert main(["module", "validate", "provider-mock", "--type", "tool", "--only", "T5"]) == 2
    printed = capsys.readouterr().out
    assert "T5\tnot examined" in printed
    assert "provider-mock (tool): unchecked; 0 of 38 clauses kept, 38 not examined, 0 violations" in printed
    assert "note: on asyncio and trio mount gave nothing that can be used as a tool" in printed


def test_a_part_of_the_contract_can_be_checked(capsys):
    assert main(["module", "validate", "tool-todo", "--only", "A2", "--static"]) == 0
    assert "A2\tkept" in capsys.readouterr().out


def test_one_finding_is_counted_as_one(tmp_path, capsys):
    file = tmp_path / "tool_mute.py"
    file.write_text('__amplifier_module_type__ = "tool"\n\n\ndef mount(coordinator, config):\n    pass\n')
    assert main(["module", "validate", str(file), "--static"]) == 1
    assert ", 1 violation, 0 recommendations, " in capsys.readouterr().out
