"""`amplifier module validate`: nothing counts as proved that nobody looked at, and nobody is blamed for what is missing here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from amplifier.cli import main


@pytest.mark.parametrize("package", ["hypothesis", "jsonschema_rs", "trio"])
def test_a_kit_that_is_not_complete_says_so_and_blames_no_module(package):
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


def test_what_only_reads_needs_nothing_more(capsys, monkeypatch):
    monkeypatch.setattr("amplifier.cli._validate.find_spec", lambda name: None)
    assert main(["module", "validate", "tool-todo", "--static"]) == 0
    assert main(["module", "validate", "tool-todo", "--only", "T1"]) == 2
    assert "hypothesis is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "T99"], "--only 'T99': there is no such clause; expected one such as 'T5'"),
        (["--only", "T5", "--only", "t6"], "--only 't6': there is no such clause; did you mean 'T6'?"),
        (["--replay", "nonsense"], "--replay 'nonsense' is not what a report printed"),
        (["--replay", "tool.answers_listed_inputs:asyncio"], "is not what a report printed behind --replay"),
        (["--html", "no/such/folder/report.html"], "there is no folder 'no/such/folder'; make it first"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_examined(arguments, complaint, capsys):
    assert main(["module", "validate", "no-such-module", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "P5"], "nothing was checked: --only P5 names nothing that is looked at in a tool"),
        (["--only", "no.such_check"], "nothing was checked: --only no.such_check"),
        (
            ["--only", "T5", "--static"],
            "nothing was checked: --only T5 names nothing that is looked at in a tool without",
        ),
        (["--replay", "tool.nothing:asyncio:bnVsbA"], "nothing was checked: --replay tool.nothing:asyncio:bnVsbA"),
    ],
)
def test_a_module_of_which_nothing_was_checked_does_not_conform(arguments, complaint, capsys):
    assert main(["module", "validate", "tool-todo", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err


def test_a_part_of_the_contract_can_be_checked(capsys):
    assert main(["module", "validate", "tool-todo", "--only", "A2", "--static"]) == 0
    assert "A2\tkept" in capsys.readouterr().out


def test_one_finding_is_counted_as_one(tmp_path, capsys):
    file = tmp_path / "tool_mute.py"
    file.write_text('__amplifier_module_type__ = "tool"\n\n\ndef mount(coordinator, config):\n    pass\n')
    assert main(["module", "validate", str(file), "--static"]) == 1
    assert ", 1 violation, 0 recommendations, " in capsys.readouterr().out
