"""The published kernel's package is installed: commands of ours give published modules the alias all the same, on both backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support.forked import run_forked
from tests.cli.doors import Door, by_acp, by_http, by_mcp

from .published_agent import CONTEXT, write_package
from .published_loops import BASIC
from .test_install import published_wheel

DENIES = """
from amplifier_core import HookResult

async def mount(coordinator, config=None):
    async def no(event, data):
        return HookResult(action="deny", reason="not today")

    coordinator.hooks.register("prompt:submit", no, name="no")
"""


def surroundings(folder: Path, *, has_wheel: bool = True) -> dict[str, str]:
    """An environment, with the wheel, whose package has none of the names that modules import, or without it."""
    found = {**os.environ, "AMPLIFIER_HOME": str(folder / "home"), "AMPLIFIER_MODULES": str(folder)}
    if has_wheel:
        place = folder / "installed"
        found["PYTHONPATH"] = str(place if place.exists() else published_wheel(place))
    return found


def amplifier(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Our command in an environment with the wheel."""
    command = [sys.executable, "-m", "amplifier", *arguments]
    return run_forked(command, text=True, timeout=280, cwd=folder, env=surroundings(folder))


SPEAKS = """
from amplifier_core import ModuleCoordinator, ProviderInfo
from amplifier_core.message_models import ChatResponse, TextBlock

async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("providers", Speaks(coordinator.hooks), name="speaks")

class Speaks:
    name = "speaks"

    def __init__(self, hooks):
        self.hooks = hooks

    def get_info(self):
        return ProviderInfo(id="speaks", display_name="Speaks")

    async def list_models(self):
        return []

    def parse_tool_calls(self, response):
        return []

    async def complete(self, request, **kwargs):
        about = {"request_id": "r", "block_index": 0, "block_type": "text"}
        await self.hooks.emit("llm:stream_block_start", about)
        for sequence, text in enumerate(["Good ", "day"]):
            await self.hooks.emit("llm:stream_block_delta", {**about, "sequence": sequence, "text": text})
        await self.hooks.emit("llm:stream_block_end", about)
        return ChatResponse(content=[TextBlock(text="Good day")])
"""

WORKER = """
import json, sys
import anyio
from amplifier import AmplifierSession
from amplifier.durable import open_engine

async def main():
    plan = json.load(open("plan.json"))
    async with open_engine("turns.db") as engine, anyio.create_task_group() as group:
        group.start_soon(engine.work, lambda session_id: AmplifierSession(plan, session_id=session_id))
        print(await engine.result(await engine.start("a", "hello")))
        group.cancel_scope.cancel()

anyio.run(main, backend=sys.argv[-1])
"""


LIVE = ["Good ", "day"]
DOORS: dict[str, tuple[tuple[str, ...], Callable[[Door], list[str]], list[str]]] = {
    "serve": (
        ("-m", "amplifier", "serve", "plan.json", "--no-token", "--port", "0", "--backend"),
        by_http,
        LIVE,
    ),
    "acp": (("-m", "amplifier", "acp", "--plan", "plan.json", "--backend"), by_acp, LIVE),
    "mcp serve": (
        ("-m", "amplifier", "mcp", "serve", "plan.json", "--backend"),
        by_mcp,
        ["Good day"],
    ),
    "durable worker": (("-c", WORKER), lambda door: [next(door.lines()).strip()], ["Good day"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("has_wheel", [True, False])
@pytest.mark.parametrize("door", DOORS)
def test_published_loop_and_provider_answer_everywhere(
    tmp_path: Path, door: str, has_wheel: bool, backend: str
):
    plan_in(tmp_path, provider="provider-speaks")
    write_package(tmp_path, "provider-speaks", SPEAKS)
    command, ask, expected = DOORS[door]
    with Door(tmp_path, surroundings(tmp_path, has_wheel=has_wheel), *command, backend) as opened:
        assert ask(opened) == expected


def plan_in(folder: Path, *hooks: str, provider: str = "provider-offline") -> str:
    write_package(folder, "loop-old", BASIC)
    write_package(folder, "context-old", CONTEXT)
    write_package(folder, "hooks-no", DENIES)
    session = {"orchestrator": {"module": "loop-old"}, "context": {"module": "context-old"}}
    plan = {
        "session": session,
        "providers": [{"module": provider}],
        "hooks": [{"module": module} for module in hooks],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return str(folder / "plan.json")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_with_published_loop(tmp_path: Path, backend: str):
    ended = amplifier(tmp_path, "run", "--backend", backend, "--plan", plan_in(tmp_path), "hello")
    assert (ended.returncode, "provider-offline" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_prompt_denied_by_published_hook_fails(tmp_path: Path, backend: str):
    ended = amplifier(
        tmp_path, "run", "--backend", backend, "--plan", plan_in(tmp_path, "hooks-no"), "hello"
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Operation denied: not today" in ended.stderr


@pytest.mark.slow
def test_doctor_reports_wheel_alias_and_users(tmp_path: Path):
    write_package(tmp_path, "hooks-no", DENIES)
    found = json.loads(amplifier(tmp_path, "doctor", "--json").stdout)["findings"]
    said = [each["text"] for each in found if each["subject"] == "published"]
    assert said[0].startswith(f"amplifier-core 2.0.2 is installed ({tmp_path / 'installed'}")
    assert said[1].startswith("hooks-no import")
    assert "the alias is there for" in said[2]


@pytest.mark.slow
def test_kit_examines_published_module_through_alias(tmp_path: Path):
    root = write_package(tmp_path, "hooks-no", DENIES)
    ended = amplifier(tmp_path, "module", "validate", str(root), "--only", "H1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "alias of this kernel" in ended.stdout
