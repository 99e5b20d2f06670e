"""Small wheels of the published shape beside ours in an otherwise empty environment: ids, commands, and the alias for children."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .environments import Environment, write_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first waits for the archives

BASH = """
from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("tools", BashTool(), name="bash")


class BashTool:
    name = "bash"
    description = "Execute bash commands."
    input_schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

    async def execute(self, input):
        return ToolResult(success=True, output=f"the published tool was given {input['command']!r}")
"""

LOOP = """
from amplifier_core import ModuleCoordinator

__amplifier_module_type__ = "orchestrator"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("orchestrator", Loop())


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None):
        return "the published loop"
"""

# Finds out about providers as the published command line does: by the entry points of one group, then by the package's name.
COMMAND_LINE = """
import asyncio
import importlib
import importlib.metadata
import sys

import amplifier_core
from amplifier_core.loader import ModuleLoader


def provider_module(module_id):
    for entry in importlib.metadata.entry_points(group="amplifier.modules"):
        if entry.name == module_id:
            return importlib.import_module(entry.load().__module__.rsplit(".", 1)[0]).__name__
    try:
        return importlib.import_module(f"amplifier_module_{module_id.replace('-', '_')}").__name__
    except ImportError:
        return None


def main():
    found = sorted(module.id for module in asyncio.run(ModuleLoader().discover()))
    print("the published command line", sys.argv[1:], amplifier_core.__version__)
    print("providers", provider_module("provider-anthropic"), "modules", found)
"""


def published(name: str) -> str:
    return f"amplifier_module_{name.replace('-', '_')}"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    made = {}
    for module_id, text in {"tool-bash": BASH, "loop-streaming": LOOP}.items():
        package, entry = (
            published(module_id),
            f"[amplifier.modules]\n{module_id} = {published(module_id)}:mount\n",
        )
        made[module_id] = write_wheel(
            folder, f"amplifier-module-{module_id}", {f"{package}/__init__.py": text}, entry, "2.5"
        )
    scripts = "[console_scripts]\namplifier = amplifier_app_cli.main:main\na-amplifier = amplifier_app_cli.main:main\n"
    files = {"amplifier_app_cli/__init__.py": "", "amplifier_app_cli/main.py": COMMAND_LINE}
    made["command line"] = write_wheel(folder, "amplifier-app-cli", files, scripts, "0.1.0")
    return made


@pytest.fixture(scope="module")
def beside(
    archives: tuple[Path, Path], wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Ours with its command line, then the published modules and the published command line."""
    environment = Environment(tmp_path_factory.mktemp("beside") / "venv", archives[0], extra="cli")
    environment.install(*wheels.values())
    return environment


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


def test_default_agent_uses_installed_tool(beside: Environment, tmp_path: Path):
    ran = beside.run(
        "amplifier-kernel", "run", "--yes", "-p", "offline", 'run "echo hello"', cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert "the published tool was given 'echo hello'" in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("source", "answer"),
    [(None, "the published loop"), ("builtin", "hello"), ("theirs", "the published loop")],
)
def test_plan_decides_about_loop(
    beside: Environment, tmp_path: Path, source: str | None, answer: str
):
    loop = {"module": "loop-streaming"}
    if source is not None:
        pin = {"distribution": "amplifier-module-loop-streaming"} if source == "theirs" else source
        loop["source"] = pin  # type: ignore[assignment]  # a plan's source is anything
    provider = {"module": "provider-mock", "config": {"responses": ["hello"]}}
    plan = {"session": {"orchestrator": loop, "context": "context-simple"}, "providers": [provider]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))

    checked = beside.run("python", "-m", "amplifier", "plan", "check", "plan.json", cwd=tmp_path)
    ran = beside.run("python", "-m", "amplifier", "run", "--plan", "plan.json", "hi", cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == answer


def test_listing_shows_module_in_use(beside: Environment, tmp_path: Path):
    ran = beside.run("amplifier-kernel", "module", "list", "--json", cwd=tmp_path)
    shown = [each for each in json.loads(ran.stdout) if each["id"] == "tool-bash"]
    assert [(each["in_use"], each["from"]) for each in shown] == [
        (True, "amplifier_module_tool_bash 2.5"),
        (False, "built in"),
    ]
    assert (
        shown[0]["description"]
        == "The published amplifier-module-tool-bash"
        != shown[1]["description"]
    )


def test_precedence_is_logged_once(beside: Environment, tmp_path: Path):
    program = """
import anyio, logging
from amplifier import AmplifierSession
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}, "providers": ["provider-offline"], "tools": ["tool-bash"]}

async def main():
    async with AmplifierSession(plan) as session:
        assert session.failures == []

anyio.run(main)
"""
    ran = beside.run("python", "-c", program, cwd=tmp_path)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("INFO module 'tool-bash'")]
    assert len(lines) == 1, ran.stderr
    assert "of amplifier_module_tool_bash 2.5" in lines[0]
    assert "of amplifier 0" in lines[0]


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def test_command_lines_have_different_names(beside: Environment, tmp_path: Path):
    published_one = beside.run("amplifier", "run", cwd=tmp_path)
    ours = [
        beside.run("amplifier-kernel", "--version", cwd=tmp_path),
        beside.run("python", "-m", "amplifier", "--version", cwd=tmp_path),
    ]
    assert (
        "No module named 'amplifier_core'" in published_one.stderr
    )  # the published kernel is not installed here
    assert [each.returncode for each in ours] == [0, 0]
    assert ours[0].stdout.startswith("amplifier-kernel, version ")
    assert ours[1].stdout.startswith("python -m amplifier, version ")


def test_doctor_notices_published_package(beside: Environment, tmp_path: Path):
    ran = beside.run("amplifier-kernel", "doctor", "--json", cwd=tmp_path)
    (found,) = [each for each in json.loads(ran.stdout)["findings"] if each["subject"] == "command"]
    assert found["verdict"] == "note"
    assert "is not this command but that of amplifier-app-cli 0.1.0" in found["text"]


def test_published_command_line_runs_on_kernel(beside: Environment, tmp_path: Path):
    """It does not take our modules for its own."""
    ran = beside.run("python", "-m", "amplifier.compat", "amplifier", "run", "hi", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert first == "the published command line ['run', 'hi'] 2.0.2"
    assert second == "providers None modules ['loop-streaming', 'tool-bash']"


# ── the alias for every process ──────────────────────────────────────────────────────────────────

PARENT = """
import os, subprocess, sys
child = "import amplifier_core, amplifier; print(amplifier_core.HookResult is amplifier.HookResult)"
ran = subprocess.run([sys.executable, "-c", child], env={**os.environ, "PYTHONPATH": "elsewhere"}, capture_output=True, text=True)
print(ran.stdout.strip() or ran.stderr.strip().splitlines()[-1])
"""


@pytest.fixture
def enabled(beside: Environment, tmp_path: Path) -> Iterator[str]:
    ran = beside.run("python", "-m", "amplifier.compat", "enable", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    yield ran.stdout
    beside.run("python", "-m", "amplifier.compat", "disable", cwd=tmp_path)


def test_child_with_own_path_needs_enabled_alias(beside: Environment, tmp_path: Path):
    def child_output() -> str:
        return beside.run(
            "python", "-m", "amplifier.compat", "-c", PARENT, cwd=tmp_path
        ).stdout.strip()

    before = child_output()
    beside.run("python", "-m", "amplifier.compat", "enable", cwd=tmp_path)
    during = child_output()
    beside.run("python", "-m", "amplifier.compat", "disable", cwd=tmp_path)

    assert "No module named 'amplifier_core'" in before
    assert during == "True"
    assert child_output() == before


def test_enabled_environment_runs_published_programs(
    beside: Environment, tmp_path: Path, enabled: str
):
    ran = beside.run("amplifier", "run", "hi", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("the published command line ['run', 'hi'] 2.0.2")


def test_status_is_printed_and_exit_code(beside: Environment, tmp_path: Path):
    command = ("python", "-m", "amplifier.compat")
    runs = [
        beside.run(*command, word, cwd=tmp_path)
        for word in ("status", "enable", "status", "disable", "disable")
    ]
    assert [each.returncode for each in runs] == [1, 0, 0, 0, 0]
    assert [each.stdout.partition(":")[0] for each in runs] == [
        *("not enabled", "enabled", "enabled", "disabled", "not enabled"),
    ]
    assert beside.run(*command, "status", "now", cwd=tmp_path).returncode == 2
    file = beside.packages / "amplifier_core_alias.pth"
    file.write_text("# what an earlier version wrote\n")
    status = beside.run(*command, "status", cwd=tmp_path)
    assert (status.returncode, "another installation or version" in status.stdout) == (1, True)
    assert beside.run(*command, "enable", cwd=tmp_path).returncode == 0
    assert beside.run(*command, "status", cwd=tmp_path).stdout.startswith("enabled")
    assert beside.run(*command, "disable", cwd=tmp_path).returncode == 0
    assert not list(beside.packages.glob("*.pth"))


def test_starting_python_costs_no_import_of_ours(beside: Environment, tmp_path: Path, enabled: str):
    ran = beside.run(
        "python",
        "-c",
        "import sys; print([m for m in sys.modules if 'amplifier' in m])",
        cwd=tmp_path,
    )
    assert ran.stdout.strip() == "[]"


def test_alias_without_package_advises_remedy(beside: Environment, tmp_path: Path):
    place = next(beside.packages.glob("amplifier/compat/_path"))
    program = f"import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; sys.path.insert(0, {str(place)!r}); import amplifier_core"
    ran = beside.run("python", "-c", program, cwd=tmp_path)
    assert "ImportError: amplifier_core is an alias of the package amplifier here" in ran.stderr
    assert "python -m amplifier.compat enable" in ran.stderr
