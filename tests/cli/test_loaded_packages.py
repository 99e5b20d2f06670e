"""Each command loads the packages that it needs. Seconds depend on the machine, names do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests._support.terminal import environment

SHOW = """
import sys
from amplifier.cli import main
code = main(sys.argv[1:])
print("loaded", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""

# The loop, the memory and the tools of an agent, the chat, and packages that take long to import.
AGENT = ("amplifier.modules.loop", "amplifier.modules.tools", "amplifier.cli.agent.agent_run")
CHAT = ("amplifier.cli.agent.chat", "prompt_toolkit", "rich.markdown", "rich.console")
SLOW = (
    "trio",
    "hypothesis",
    "pytest",
    "starlette",
    "uvicorn",
    "hypercorn",
    "mcp",
    "opentelemetry",
    "dbos",
    "httpx2",
)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["session", "list"], (*CHAT, *SLOW, "cattrs")),
        (["models", "-p", "offline"], (*AGENT, *CHAT, *SLOW)),
        (["run", "-q", "-p", "offline", "hello"], (*CHAT, *SLOW)),
        (["config"], (*AGENT, *CHAT, *SLOW)),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, list) else "",
)
def test_command_loads_what_it_needs(words, absent, home, workdir):
    finished = subprocess.run(
        [sys.executable, "-c", SHOW, *words],
        env=environment(home),
        cwd=workdir,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert finished.returncode == 0, finished.stderr
    loaded = finished.stderr.splitlines()[-1].split()[1:]
    assert "amplifier" in loaded
    assert [
        name
        for name in absent
        if any(each == name or each.startswith(f"{name}.") for each in loaded)
    ] == []
