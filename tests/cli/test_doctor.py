"""`amplifier doctor` and `amplifier completion`: is everything in place, and does the shell complete our words."""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import pytest

from amplifier.cli import main
from amplifier.cli._sessions import SessionStore
from amplifier.cli.commands import doctor as _doctor
from amplifier.loading import loader as installed_modules
from amplifier.store import SessionRecord
from tests._support.forked import run_forked
from tests._support.terminal import command, environment


def findings(capsys) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(finding["subject"], []).append(finding)
    return found


def test_doctor_checks_everything_without_showing_keys(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "very-secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code = main(["doctor", "--json"])
    captured = capsys.readouterr().out
    assert "very-secret" not in captured
    shown = json.loads(captured)
    assert (code, shown["ok"]) in ((0, True), (1, False))
    subjects = {finding["subject"] for finding in shown["findings"]}
    assert {"python", "backend", "extra", "modules", "key", "provider", "state"} <= subjects
    texts = [finding["text"] for finding in shown["findings"] if finding["subject"] == "key"]
    assert texts == [
        "ANTHROPIC_API_KEY is set (provider-anthropic)",
        "OPENAI_API_KEY is not set (provider-openai)",
    ]


def test_unwritable_state_folder_is_problem(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "file"))
    assert main(["doctor", "--json"]) == 1
    (state,) = findings(capsys)["state"]
    assert state["verdict"] == "problem"
    assert "set AMPLIFIER_HOME" in state["text"]


def test_crashing_check_is_finding(tmp_path, monkeypatch, capsys):
    def _check_weather():
        raise RuntimeError("no window")
        yield

    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path))
    monkeypatch.setattr(_doctor, "_CHECKS", (_check_weather,))
    assert main(["doctor", "--json"]) == 1
    (weather,) = findings(capsys)["weather"]
    assert "no window" in weather["text"]


def test_broken_module_is_named(plant, capsys):
    plant("tool-broken", "import no_such_library\n")
    main(["doctor", "--json"])
    (broken,) = [
        each for each in findings(capsys)["module"] if each["text"].startswith("tool-broken")
    ]
    assert broken["verdict"] == "note"  # the default plan does not need it
    assert "no_such_library" in broken["text"]


def test_module_on_island_is_named(plant, capsys):
    plant(
        "tool-timer",
        '__amplifier_backends__ = ("asyncio",)\n\nasync def mount(coordinator, config): ...\n',
    )
    main(["doctor", "--json"])
    (named,) = [
        each for each in findings(capsys)["module"] if each["text"].startswith("tool-timer")
    ]
    assert named["verdict"] == "ok"
    assert "needs asyncio; on trio it runs on an asyncio island" in named["text"]


def script(folder, text):
    folder.mkdir(exist_ok=True)
    file = folder / "amplifier"
    file.write_text(f"#!/usr/bin/python\n{text}\n")
    file.chmod(0o755)


def test_other_command_of_same_name_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    metadata = tmp_path / "site" / "amplifier_app_cli-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: amplifier-app-cli\nVersion: 0.1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[console_scripts]\namplifier = amplifier_app_cli.main:main\n"
    )

    main(["doctor", "--json"])
    (absent,) = findings(capsys)["command"]
    script(tmp_path / "bin", "from amplifier.cli import main")
    main(["doctor", "--json"])
    (ours,) = findings(capsys)["command"]
    monkeypatch.syspath_prepend(tmp_path / "site")
    main(["doctor", "--json"])
    both = findings(capsys)["command"]
    script(tmp_path / "bin", "from amplifier_app_cli.main import main")
    main(["doctor", "--json"])
    (foreign,) = findings(capsys)["command"]

    assert (
        absent["verdict"],
        ours["verdict"],
        [each["verdict"] for each in both],
        foreign["verdict"],
    ) == (
        *("note", "ok"),
        ["ok", "note"],
        "note",
    )
    assert "amplifier-app-cli 0.1.0 installs a command `amplifier` as well" in both[1]["text"]
    assert "is not this command but that of amplifier-app-cli 0.1.0" in foreign["text"]
    assert "`amplifier-kernel` and `python -m amplifier` always are" in foreign["text"]


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "function")]
)
def test_each_shell_gets_own_code(shell, word, cli):
    captured = cli("completion", shell).out
    assert word in captured
    assert "_AMPLIFIER_COMPLETE" in captured


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["amplifier", ""], {"run", "session", "module", "plan", "doctor", "completion"}),
        (["amplifier", "run", "--resume", "mon"], {"monday"}),
        (["amplifier", "module", "show", "loop-b"], {"loop-basic"}),
    ],
)
def test_shell_completes_commands_and_ids(words, expected, tmp_path):
    SessionStore(tmp_path / "sessions").write(SessionRecord(session_id="monday"))
    variables = {
        **environment(tmp_path),
        "_AMPLIFIER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    finished = run_forked(command(), env=variables, text=True)
    offered = {line.partition(",")[2] for line in finished.stdout.splitlines()}
    assert expected <= offered, finished.stderr
    assert finished.returncode == 0
    assert os.listdir(tmp_path) == ["sessions"]


def test_installation_without_trio_is_valid(monkeypatch, cli):
    found = importlib.util.find_spec
    for module in (sys.modules[_doctor.__name__], installed_modules):
        monkeypatch.setattr(
            module, "find_spec", lambda name, *rest: None if name == "trio" else found(name, *rest)
        )
    report = json.loads(cli("doctor", "--json").out)
    told = [each for each in report["findings"] if each["subject"] == "backend"]
    assert [(each["verdict"], each["text"].partition(" ")[0]) for each in told] == [
        ("ok", "asyncio"),
        ("note", "trio"),
    ]
