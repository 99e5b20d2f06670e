"""The user's configuration and a project's: merged with the origin of each value; before trust a project can only tighten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli._exit_codes import CommandError
from amplifier.cli.agent.configuration import Project, read_configuration
from amplifier.cli.agent.default_plan import build_plan
from amplifier.loading.loader import installed_ids
from tests._support.terminal import open_terminal, run_cli

PROJECT = """
provider = "anthropic"
theme = "light"

[[rules]]
tool = "bash"
command = "git push *"
action = "deny"

[[rules]]
tool = "bash"
action = "allow"

[mcpServers.pwned]
command = "touch"
args = ["{marker}"]

[modules.tool-pwned]
source = "{marker}"
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What a program of the project would make."""
    return tmp_path / "marker"


@pytest.fixture
def project(workdir: Path, marker: Path) -> Path:
    """The file of a repository that wants more than it may have."""
    (workdir / ".git").mkdir()
    file = workdir / ".amplifier" / "config.toml"
    file.parent.mkdir()
    file.write_text(PROJECT.format(marker=marker))
    return file


@pytest.fixture(autouse=True)
def user(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file; not made yet."""
    monkeypatch.setenv("AMPLIFIER_HOME", str(home))
    home.mkdir()
    return home / "config.toml"


def rules_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    (hook,) = [entry for entry in plan["hooks"] if entry["module"] == "hooks-approval"]
    rules: list[dict[str, Any]] = hook.get("config", {}).get("rules", [])
    return rules


def test_untrusted_project_only_tightens_rules(project, workdir, user):
    user.write_text('model = "mine"\n[[rules]]\ntool = "web_fetch"\naction = "allow"\n')
    found = read_configuration(workdir)
    assert {path: each.value for path, each in found.values.items()} == {
        "model": "mine",
        "rules.0": {"tool": "web_fetch", "action": "allow"},
        "rules.1": {"tool": "bash", "command": "git push *", "action": "deny"},
    }
    assert found.values["rules.0"].origin == str(user)
    assert found.values["rules.1"].origin == str(project)
    (note,) = found.notes
    assert "provider, theme, rules.1, mcpServers.pwned, modules.tool-pwned not used" in note
    assert note.endswith("amplifier config trust")
    plan = build_plan(
        installed_ids(),
        configuration=found,
        directory=workdir,
        environment={"ANTHROPIC_API_KEY": "x"},
    ).plan
    assert [rule["action"] for rule in rules_of(plan)] == ["allow", "deny"]
    assert "tool-mcp" not in json.dumps(plan)


def test_trust_covers_file_contents_and_is_revocable(project, workdir, home):
    def trust(*more: str) -> str:
        return run_cli("config", "trust", *more, home=home, cwd=workdir).stdout

    def used() -> bool:
        found = read_configuration(workdir)
        assert bool(found.notes) == ("mcpServers.pwned" not in found.values)
        return not found.notes

    assert not used()
    assert "trusted as it is now" in trust()
    assert used()
    project.write_text(project.read_text() + "# changed\n")
    assert not used()
    trust()
    assert used()
    trust("--revoke")
    assert not used()


def test_invalid_file_is_not_trusted(project, workdir, home):
    project.write_text('[[rules]]\ntool = "bash"\naction = "alow"\n')
    finished = run_cli("config", "trust", home=home, cwd=workdir)
    assert finished.returncode == 2
    assert "rules[0]" in finished.stderr
    assert finished.stdout == ""


def test_nothing_of_untrusted_project_runs(project, workdir, home, marker, backend):
    finished = run_cli(
        "run", "hello", "-p", "offline", "--backend", backend, home=home, cwd=workdir
    )
    assert finished.returncode == 0, finished.stderr
    assert "amplifier config trust" in finished.stderr
    assert not marker.exists()
    run_cli("config", "trust", home=home, cwd=workdir)
    finished = run_cli(
        "run", "hello", "-p", "offline", "--backend", backend, home=home, cwd=workdir
    )
    assert finished.returncode == 2  # the module that it names is none
    assert "tool-pwned" in finished.stderr


def test_subfolder_uses_repository_configuration(project, workdir):
    (workdir / "below").mkdir()
    assert Project(workdir / "below").file == project


def test_user_configuration_yields_to_options(user, workdir):
    user.write_text(
        'provider = "mock"\nmodel = "large"\n[modules.tool-bash.config]\ntimeout = 7\n[modules.loop-basic]\n'
        '[mcpServers.files]\ncommand = "server"\nenv = { KEY = "${env:SECRET}" }\n'
    )
    found = read_configuration(workdir)
    made = build_plan(installed_ids(), configuration=found, environment={"SECRET": "s"})
    plan = made.plan
    assert made.provider == "provider-mock"
    assert plan["session"]["orchestrator"] == {"module": "loop-basic", "config": {"model": "large"}}
    tools = {entry["module"]: entry.get("config") for entry in plan["tools"]}
    assert tools["tool-bash"] == {"timeout": 7}
    assert tools["tool-mcp"] == {"servers": {"files": {"command": "server", "env": {"KEY": "s"}}}}
    other = build_plan(
        installed_ids(), configuration=found, provider="offline", environment={"SECRET": "s"}
    )
    assert other.provider == "provider-offline"
    assert "large" not in json.dumps(other.plan)  # it is a model of the other provider


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("providr = 'x'", "$.providr: unknown key; did you mean 'provider'?"),
        ("theme = 'loud'", "$.theme: expected one of 'dark', 'light', 'plain'"),
        ("[[rules]]\ntool = 'bash'", "$.rules[0].action: is missing"),
        ("modules = { clock = {} }", "$.modules: expected an object of modules by their id"),
        ("provider = ", "not valid TOML"),
    ],
)
def test_wrong_file_is_reported_with_path(content, problem, user, workdir, home):
    user.write_text(content)
    with pytest.raises(CommandError) as caught:
        read_configuration(workdir)
    assert problem in str(caught.value)
    assert str(user) in str(caught.value)
    assert run_cli("run", "hello", home=home, cwd=workdir).returncode == 2


def test_config_shows_origins_without_secrets(user, workdir, home):
    user.write_text('[mcpServers.a]\ncommand = "x"\nenv = { API_KEY = "sk-ant-REDACTED" }\n')
    finished = run_cli("config", home=home, cwd=workdir)
    rows = [line.split("\t") for line in finished.stdout.splitlines()]
    assert [row[0] for row in rows] == ["mcpServers.a", "provider"]
    assert rows[0][2] == str(user)
    assert "sk-ant" not in finished.stdout
    assert rows[1][1:] == ["provider-offline", "default: no key is set"]
    shown = json.loads(run_cli("config", "--json", home=home, cwd=workdir).stdout)
    assert shown["mcpServers.a"]["origin"] == str(user)


@pytest.mark.parametrize("columns", [80, 40])
def test_config_at_terminal_and_plain_theme(columns, user, workdir, home):
    user.write_text('theme = "plain"\nprovider = "offline"\n')
    with open_terminal("config", home=home, cwd=workdir, size=(24, columns)) as terminal:
        assert terminal.end() == 0
        assert all(len(row) <= columns for row in terminal.rows)
        assert terminal.rows[1].startswith("provider  offline")
    with open_terminal("run", "hello", home=home, cwd=workdir, size=(24, columns)) as terminal:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.screen


def test_damaged_state_is_error_and_untrusted(project, workdir, home):
    (home / "projects.json").write_text("{")
    with pytest.raises(CommandError, match="is damaged"):
        read_configuration(workdir)
