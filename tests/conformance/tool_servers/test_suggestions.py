"""What is not a module gets the command that works."""

from __future__ import annotations

import pytest

from amplifier.cli import main
from amplifier.conformance.target.suggest import fitting_command

SERVER = "from mcp.server.mcpserver import MCPServer\n\nserver = MCPServer('x')\n"
TOOLSET = "from pydantic_ai import FunctionToolset\n\ntools = FunctionToolset([])\n"
FUNCTION_TOOL = "from agents import function_tool\n\n@function_tool\ndef greet(): ...\n"
MOUNTED = "async def mount(coordinator, config):\n    await coordinator.mount('providers', 1)\n"
LANGCHAIN = "from langchain_core.tools import tool\n\n@tool('x')\ndef divide(): ...\n"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (SERVER, "amplifier validate mcp 'python {file}'"),
        (TOOLSET, "amplifier validate python {file}:tools"),
        (FUNCTION_TOOL, "amplifier validate python {file}:greet"),
        (LANGCHAIN, "amplifier validate python {file}:divide"),
        ("def plain(): ...\n", "amplifier validate python {file}:plain"),
        (MOUNTED, "amplifier module validate {file} --type provider"),
    ],
)
def test_a_folder_with_one_file_gets_its_command(text, command, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert fitting_command(str(tmp_path)) == command.format(file=file)
    assert main(["module", "validate", str(tmp_path), "--static"]) == 2
    assert command.format(file=file) in capsys.readouterr().err


@pytest.mark.parametrize("text", [LANGCHAIN, MOUNTED, "def plain(): ...\n"])
def test_a_file_gets_its_command_whatever_its_name(text, tmp_path, capsys):
    file = tmp_path / "tools.py"
    file.write_text(text)
    command = fitting_command(str(file))
    main(["module", "validate", str(file), "--static"])
    shown = capsys.readouterr()
    assert command is not None
    assert "mount" in text or command in shown.out + shown.err


def test_commands_and_urls_get_the_command_for_servers():
    assert fitting_command("npx -y some-server") == "amplifier validate mcp 'npx -y some-server'"
    assert (
        fitting_command("https://example.org/mcp")
        == "amplifier validate mcp https://example.org/mcp"
    )
    assert fitting_command("tool-mine") is None


def test_a_node_package_gets_the_command_for_servers(tmp_path):
    (tmp_path / "package.json").write_text('{"dependencies": {"@modelcontextprotocol/sdk": "1"}}')
    assert fitting_command(str(tmp_path)) == f'amplifier validate mcp "npx -y {tmp_path}"'
