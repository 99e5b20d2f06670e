"""`amplifier mcp`: what servers offer, a call by hand, the servers of other hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier.cli import main
from amplifier.cli.agent.plan_files import read_servers, servers_of
from amplifier.modules.tools.mcp import read_mcp_options
from tests._support.terminal import open_terminal
from tests._support.tree import TESTS

SMALL = str(TESTS / "modules" / "tools" / "mcp" / "small_server.py")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of another host with a server that works and one that does not."""
    servers = {
        "small": {"command": sys.executable, "args": ["-SE", SMALL, "--all"]},
        "gone": {"command": "no-such-program-anywhere"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def test_list_shows_tools_and_failing_servers(file, backend, cli):
    printed = cli("mcp", "list", "--plan", file, "--backend", backend, code=1)
    assert "small\tsmall_echo\tread-only\tReturn the text.\n" in printed.out
    assert "small\tsmall_erase\tdestructive\tErase it.\n" in printed.out
    assert printed.err.count("'no-such-program-anywhere' was not found") == 1


def test_list_as_json_has_schemas_and_annotations(file, cli):
    (server,) = json.loads(cli("mcp", "list", "small", "--plan", file, "--json").out)
    echo = server["tools"][0]
    assert (echo["name"], echo["annotations"]) == ("small_echo", {"readOnlyHint": True})
    assert echo["input_schema"]["required"] == ["text"]
    (failed,) = json.loads(cli("mcp", "test", "gone", "--plan", file, "--json", code=1).out)
    assert "was not found" in failed["error"]


def test_test_prints_timings(file, cli):
    printed = cli("mcp", "test", "small", "--plan", file)
    assert "small: small 1, protocol 2025-11-25, 15 tools, ready in" in printed.out
    assert "opened and closed in" in printed.err


@pytest.mark.parametrize("words", [["text=a b"], ['{"text": "a b"}']])
def test_call_prints_result_and_time(file, words, backend, cli):
    printed = cli("mcp", "call", "small", "upper", *words, "--plan", file, "--backend", backend)
    assert printed.out == "A B\n"
    assert printed.err.endswith(" s\n")


def test_call_accepts_plan_name_and_prints_json(file, cli):
    assert (
        json.loads(
            cli("mcp", "call", "small", "small_echo", "text=7", "--plan", file, "--json").out
        )["output"]
        == "7"
    )  # the schema wants a text
    assert cli("mcp", "call", "small", "big", "size=3", "--plan", file).out == "xxx\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["call", "smal", "echo"],
            2,
            "there is no server 'smal'; did you mean 'small'? The servers are: small, gone",
        ),
        (["call", "x", "echo"], 2, "there is no server 'x'. The servers are: small, gone"),
        (["call", "small", "fail"], 2, "server 'small' has no tool 'fail'. It has: big,"),
        (
            ["call", "small", "ecko"],
            2,
            "server 'small' has no tool 'ecko'; did you mean 'echo'? It has: big,",
        ),
        (
            ["call", "small", "echo", "text"],
            2,
            "'text' is not an argument; expected NAME=VALUE, or one JSON object",
        ),
        (["call", "small", "echo", "{bad"], 2, "the arguments are not valid JSON"),
        (["call", "small", "upper"], 1, "KeyError: 'text'"),
        (["call", "gone", "echo"], 1, "the command 'no-such-program-anywhere' was not found"),
        (["login", "gone"], 1, "was not found"),
    ],
)
def test_wrong_call_gets_one_message(file, arguments, code, words, cli):
    error = cli("mcp", *arguments, "--plan", file, code=code).err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"session": {}}',
            "there are no MCP servers in it; expected a plan with the module tool-mcp",
        ),
        ('{"mcpServers": {}}', "there is no server to open"),
    ],
)
@pytest.mark.parametrize("words", [["list"], ["test"], ["list", "--json"]])
def test_file_without_servers_is_refused(words, content, message, tmp_path, cli):
    (tmp_path / "mcp.json").write_text(content)
    assert message in cli("mcp", *words, "--plan", str(tmp_path / "mcp.json"), code=2).err


def test_import_prints_plan_section(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("GITHUB_KEY", "value")
    given: dict[str, Any] = {
        "fs": {
            "command": "npx",
            "args": ["-y", "server-fs", "${env:HOME}"],
            "env": {"API_KEY": "abcdef1234567890"},
        },
        "web": {
            "type": "http",
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer ${input:github-key}"},
        },
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": given}))
    printed = cli("mcp", "import", str(path))
    (entry,) = yaml.safe_load(printed.out)["tools"]
    assert entry["module"] == "tool-mcp"
    assert entry["config"]["servers"]["fs"]["args"][2] == "${HOME}"
    assert entry["config"]["servers"]["web"]["headers"] == {"Authorization": "Bearer ${GITHUB_KEY}"}
    assert printed.err == "note: fs.env.API_KEY is a secret in plain text; use ${NAME} instead\n"
    plan = tmp_path / "plan.yaml"
    plan.write_text(printed.out)
    assert [server.name for server in read_mcp_options(read_servers(plan)).servers] == ["fs", "web"]


def test_vs_code_file_is_read():
    assert servers_of({"inputs": [], "servers": {"x": {"command": "a"}}}) == {"x": {"command": "a"}}
    assert servers_of({"session": {}, "servers": {}}) is None


# ── in the default agent ─────────────────────────────────────────────────────────────────────────


def test_added_server_stays_until_removed(backend, tmp_path, monkeypatch, cli):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.chdir(tmp_path)
    assert "add one: amplifier mcp add" in cli("mcp", "list", code=2).err
    added = cli(
        "mcp", "add", "-e", "WORD=${GREETING}", "small", sys.executable, "-SE", SMALL, "--all"
    ).out
    config = tmp_path / "home" / "config.toml"
    assert f"small is in {config}; try it: amplifier mcp test small" in added
    config.write_text(f"# mine\n{config.read_text()}")
    assert "small\tsmall_echo\tread-only" in cli("mcp", "list", "--backend", backend).out
    cli("mcp", "call", "small", "echo", "text=hi", "--backend", backend)
    (entry,) = [
        each
        for each in json.loads(cli("plan", "show").out)["tools"]
        if each["module"] == "tool-mcp"
    ]
    assert entry["config"]["servers"]["small"]["args"] == ["-SE", SMALL, "--all"]
    cli("mcp", "remove", "small")
    assert config.read_text().startswith("# mine\n")
    assert "has no mcpServers.small; it has: none" in cli("mcp", "remove", "small", code=2).err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["-e", "TOKEN=ghp_0123456789abcdefghij0123456789abcdef", "x", "run"],
            "is a secret in plain text",
        ),
        (["", "run"], "expected a printable name of a server"),
    ],
)
def test_add_checks_its_output(arguments, problem, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path))
    main(["mcp", "add", *arguments])
    assert problem in capsys.readouterr().err


def test_run_uses_servers_of_file(file, backend, tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    with open_terminal(
        "run", "--mcp", file, "-p", "offline", "--backend", backend, home=home, cwd=work
    ) as terminal:
        terminal.say("/mcp", "gone", "was not found")
        terminal.say("/tools", "small_echo")
        terminal.leave()
