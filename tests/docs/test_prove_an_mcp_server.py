"""The page for authors of MCP servers: its commands run, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import sys

import pytest

from tests._support.programs import run_program
from tests._support.tree import ROOT

PAGE = (ROOT / "docs" / "how-to" / "prove-an-mcp-server.md").read_text(encoding="utf-8")
COMMANDS = [*dict.fromkeys(re.findall(r"^```sh\n(amplifier .*)\n```", PAGE, re.MULTILINE))]
SERVER = next(
    block
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    if "shelf" in block
)
SHOWN = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FUNCTION = 'def search(query: str) -> str:\n    """Search."""\n    return query.upper()\n'
CODES = {"": 1, "--skip remove": 1, "--junit": 1, "python": 0}


def test_page_has_its_commands():
    assert len(COMMANDS) == len(CODES)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_command_of_page_runs(command, tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "tools.py").write_text(FUNCTION)
    words = shlex.split(command)[1:]
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = run_program([sys.executable, "-m", "amplifier", *words], cwd=tmp_path, env=environment)
    shown = done.stdout + done.stderr
    if words[1] == "python":
        assert done.returncode == 0, shown
        return
    assert done.returncode == 1, shown
    assert all(line in done.stdout for line in SHOWN[1].splitlines()), shown
    if len(words) == 3:
        assert done.stdout.startswith(SHOWN[0]), shown
    if "--junit" in words:
        assert "S14" in (tmp_path / "report.xml").read_text()
