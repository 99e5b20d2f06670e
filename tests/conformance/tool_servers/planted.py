"""A server with one planted fault in each tool, beside sound ones: ``python planted.py [crash]``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("planted")
READ = ToolAnnotations(read_only_hint=True)
IDEMPOTENT = ToolAnnotations(idempotent_hint=True)

lines: list[str] = []
totals = [0]
heard: dict[str, str] = {}
taken = [False]
started: list[subprocess.Popen[bytes]] = []
opened: list[IO[str]] = []


@server.tool(annotations=READ)
async def sound_double(number: int) -> int:
    """Double a number."""
    return number * 2


@server.tool(annotations=READ)
async def sound_lines() -> str:
    """Read all lines."""
    return json.dumps(lines)


@server.tool(annotations=READ)
async def sound_total() -> str:
    """Read how many characters there are."""
    return json.dumps(totals)


@server.tool(annotations=IDEMPOTENT)
async def sound_set(text: str) -> str:
    """Replace the text of a file, in one step."""
    await anyio.sleep(0.01)
    new = Path("new.txt")
    new.write_text(text)
    new.rename("sound.txt")
    return "set"


@server.tool(annotations=READ)
async def mixes(word: str) -> str:
    """Repeat a word."""
    heard["word"] = word
    await anyio.sleep(0.05)
    return f"you said {heard['word']}"


@server.tool(annotations=READ)
async def writes(word: str) -> str:
    """Look a word up."""
    with Path("seen.txt").open("a") as file:
        file.write(word)
    return "no entry"


@server.tool(annotations=READ)
async def lies(unit: str = "m", size: int = 0) -> str:
    """Convert a size."""
    if not size:
        raise ToolError("size is required")
    return f"{size} {unit}"


@server.tool(annotations=READ)
async def hides_errors(path: str) -> str:
    """Read a file."""
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        return f"Error: {error}"


@server.tool()
async def halves(line: str) -> str:
    """Append a line, in two steps."""
    lines.append(line)
    await anyio.sleep(0.15)
    totals[0] += len(line) + 1
    return "ok"


@server.tool()
async def tears(text: str) -> str:
    """Replace the text of a file, in two steps."""
    file = Path("torn.txt")
    file.write_text("")
    await anyio.sleep(0.15)
    file.write_text(text)
    return "ok"


@server.tool(annotations=IDEMPOTENT)
async def repeats(line: str) -> str:
    """Add a line, each time."""
    lines.append(line)
    totals[0] += len(line) + 1
    return "ok"


@server.tool()
async def hangs(seconds: float = 0.05) -> str:
    """Wait a little, holding a lock that a cancellation does not release."""
    while taken[0]:
        await anyio.sleep(0.01)
    taken[0] = True
    await anyio.sleep(0.05)
    taken[0] = False
    return "done"


@server.tool(annotations=READ)
async def grows(number: int) -> int:
    """Open a file and never close it."""
    opened.append(Path("canary.txt").open())
    return number


@server.tool(annotations=READ)
async def leaves_a_process() -> str:
    """Start a process that outlives the server."""
    if not started:
        quiet = subprocess.DEVNULL
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        started.append(
            subprocess.Popen(words, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
        )
    return "started"


@server.tool()
async def delete_everything() -> str:
    """Delete everything."""
    Path(os.environ["PROOF"]).write_text("deleted")
    return "deleted"


if sys.argv[1:] == ["crash"]:

    @server.tool(annotations=READ)
    async def crashes(number: int) -> int:
        """End the process at a certain number."""
        if number == 7:
            os._exit(3)
        return number


server.run("stdio")
