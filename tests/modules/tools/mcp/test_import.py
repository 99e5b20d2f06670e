"""The SDK is imported when a session with servers opens, and the event loop runs meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests._support.tree import ROOT
from tests.modules.tools.mcp.desk import small

PROGRAM = """
import json, sys
import anyio
from tests.modules.tools.mcp.desk import opened

turns = 0
imported = {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mcp", "mcp_types", "pydantic", "httpx2"):
            imported[name] = turns

async def beat():
    global turns
    while True:
        await anyio.sleep(0.002)  # leaves the processor to the import, unlike a loop of checkpoints
        turns += 1

async def main(server):
    sys.meta_path.insert(0, Watch())
    before = [name for name in ("mcp", "mcp_types", "pydantic") if name in sys.modules]
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        async with opened({"small": server}) as desk:
            tools = sorted(desk.tools)
        group.cancel_scope.cancel()
    at = sorted(imported.values())
    print(json.dumps({"before": before, "tools": tools, "modules": len(at), "moments": len(set(at))}))

anyio.run(main, json.loads(sys.argv[1]), backend=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_event_loop_runs_during_sdk_import(loop):
    command = [sys.executable, "-c", PROGRAM, json.dumps(small()), loop]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seen = json.loads(finished.stdout)
    assert seen["before"] == []
    assert seen["tools"] == ["small_echo", "small_upper"]
    assert seen["modules"] > 100
    assert (
        seen["moments"] > 10
    )  # moments between two imports at which the loop had turned; 1 if the loop stood still
