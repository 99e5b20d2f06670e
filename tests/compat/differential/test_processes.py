"""A command of a published tool at the end of a session: the published kernel leaves it running, ours does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ..published_agent import CONTEXT, write_package
from ..published_bash import TOOL
from ..published_loops import BASIC

PROGRAM = """
import asyncio, json, logging, os, sys
if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat
    amplifier.compat.install()
import amplifier_core as core
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall
logging.disable(logging.CRITICAL)
sys.path[:0] = sys.argv[2:]
COMMAND = sys.argv[1]
PLAN = {"session": {"orchestrator": "loop-scripted", "context": "context-scripted"}, "tools": [{"module": "tool-shell"}]}


class Provider:
    name = "scripted"

    def __init__(self):
        self.script = [[ToolCall(id="1", name="bash", arguments={"command": COMMAND})], []]

    async def complete(self, request, **kwargs):
        calls = self.script.pop(0)
        return ChatResponse(content=[] if calls else [TextBlock(text="done")], tool_calls=calls or None)

    def parse_tool_calls(self, response):
        return response.tool_calls or []


async def main():
    session = core.AmplifierSession(PLAN, session_id="s")
    started = asyncio.Event()
    pids = []
    session.coordinator.register_capability("test.started", lambda pid: (pids.append(pid), started.set()))
    await session.coordinator.mount("providers", Provider(), name="scripted")
    await session.initialize()
    task = asyncio.ensure_future(session.execute("go"))
    waiting = asyncio.ensure_future(started.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    answer = None
    if COMMAND.startswith("sleep"):
        task.cancel()
        try:
            await task
        except BaseException:
            pass
    else:
        answer = await task
    await session.cleanup()
    with open(f"/proc/{pids[0]}/stat") as file:
        state = file.read().rpartition(") ")[2][0]
    return [answer, state not in "ZX", pids[0]]


async def guarded():
    try:
        return await main()
    except FileNotFoundError:
        return ["ended", False, 0]

print(json.dumps(asyncio.run(guarded())), flush=True)
os._exit(0)
"""


@pytest.fixture
def roots(tmp_path: Path) -> list[str]:
    modules = {"tool-shell": TOOL, "loop-scripted": BASIC, "context-scripted": CONTEXT}
    return [
        str(write_package(tmp_path, module_id, source)) for module_id, source in modules.items()
    ]


def outcome(python: str, alias: str, command: str, roots: list[str]) -> list[object]:
    ran = subprocess.run(
        [python, "-W", "ignore", "-c", PROGRAM, command, *roots],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "AMPLIFIER_COMPAT": alias},
        check=True,
    )
    answer, is_running, pid = json.loads(ran.stdout)
    if is_running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return [answer, is_running]


def test_cancelled_command_survives_on_published_kernel(reference_python: str, roots: list[str]):
    assert outcome(reference_python, "", "sleep 600", roots)[1] is True
    assert outcome(sys.executable, "1", "sleep 600", roots)[1] is False


def test_ending_command_is_alike(reference_python: str, roots: list[str]):
    published = outcome(reference_python, "", "echo hello", roots)
    assert published == outcome(sys.executable, "1", "echo hello", roots)
