"""The wheel and the sdist: what is in them, and what works when nothing else is installed.

The empty environment gets its dependencies from this one, as far as the wheel asks for them, so that no index is needed.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import amplifier
from tests._support.tree import ROOT

from .environments import Environment, built

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first waits for the archives

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def wheel(archives: tuple[Path, Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(archives[0])


@pytest.fixture(scope="module")
def sdist_names(archives: tuple[Path, Path]) -> set[str]:
    with tarfile.open(archives[1]) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


# ── what is in them ──────────────────────────────────────────────────────────────────────────────


def test_wheel_holds_exactly_package_files(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {
        p.relative_to(source).as_posix() for p in (source / "amplifier").rglob("*") if p.is_file()
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in files if "__pycache__" not in name}


@pytest.mark.parametrize(
    "name",
    [
        "amplifier/py.typed",
        "amplifier/models/models.schema.json",
        "amplifier/plan/mount-plan.schema.json",
        "amplifier/cli/commands/scaffold/tool.py.txt",
        "amplifier/modules/tools/bash/seccomp/x86_64.bpf",
        "amplifier/modules/tools/bash/seccomp/aarch64.bpf",
        "amplifier/cli/commands/scaffold/pyproject.toml.txt",
        f"amplifier-{amplifier.__version__}.dist-info/licenses/LICENSE",
    ],
)
def test_wheel_holds_data_files(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()


def test_tree_and_sdist_give_same_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (from_tree,) = built(ROOT, tmp_path, "--wheel")
    with zipfile.ZipFile(from_tree) as other:
        assert {name: other.read(name) for name in other.namelist()} == {
            name: wheel.read(name) for name in wheel.namelist()
        }


def test_sdist_is_clean_project(sdist_names: set[str]) -> None:
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/amplifier/py.typed",
    } <= sdist_names
    made = re.compile(
        r"(^|/)(\.venv|\.node|\.models|\.amplifier|\.git/|_build|__pycache__|\.hypothesis|\.mypy_cache|dist/)"
    )
    assert [name for name in sdist_names if made.search(name)] == []


def test_metadata_matches_code(wheel: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(
        wheel.read(f"amplifier-{amplifier.__version__}.dist-info/METADATA").decode("utf-8")
    )
    assert metadata["Version"] == amplifier.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra") or []) == {
        "all", "anthropic", "cli", "durable", "mcp", "openai", "otel", "providers", "serve", "testing", "trio",
    }  # fmt: skip


# ── an empty environment ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def empty(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("empty") / "venv", archives[0])


def test_base_install_is_small(empty: Environment) -> None:
    assert empty.distributions <= {
        "amplifier", "anyio", "attrs", "cattrs", "idna", "orjson", "typing_extensions",
    }  # fmt: skip
    size = sum(file.stat().st_size for file in empty.packages.rglob("*") if file.is_file())
    assert size < 14 * MEGABYTE, f"{size / MEGABYTE:.1f} MB"


def test_base_install_packages_import(empty: Environment, tmp_path: Path) -> None:
    packages = "compat, conformance, contracts, errors, events, kernel, loading, models, plan, shared_sessions, testing, tracing"
    finished = empty.python(
        f"import amplifier\nfrom amplifier import {packages}\nprint(amplifier.__file__)", tmp_path
    )
    assert finished.returncode == 0, finished.stderr
    assert Path(finished.stdout.strip()).is_relative_to(empty.packages)


AGENT = """
import anyio
from amplifier import AmplifierSession

plan = {
    "session": {"orchestrator": "loop-streaming", "context": "context-persistent"},
    "context": {"config": {"path": "messages.log"}},
    "providers": ["provider-offline"],
    "tools": ["tool-filesystem", "tool-search", "tool-todo", "tool-bash"],
    "hooks": ["hooks-logging", "hooks-redaction"],
}

async def main():
    async with AmplifierSession(plan) as session:
        assert session.failures == [], session.failures
        print(await session.execute("list the files"))

anyio.run(main)
"""


def test_agent_of_built_in_modules_works(empty: Environment, tmp_path: Path) -> None:
    (tmp_path / "hello.txt").write_text("hello")
    finished = empty.python(AGENT, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "hello.txt" in finished.stdout


@pytest.mark.parametrize(
    "command", [["amplifier"], ["amplifier", "run", "hi"], ["python", "-m", "amplifier"]]
)
def test_command_names_missing_extra(
    empty: Environment, command: list[str], tmp_path: Path
) -> None:
    finished = empty.run(*command, cwd=tmp_path)
    assert finished.returncode == 2
    assert "amplifier[cli]" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_module_names_missing_extra(empty: Environment, tmp_path: Path) -> None:
    program = """
import anyio
from amplifier import AmplifierSession

async def main():
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [
            {"module": "provider-anthropic", "config": {"api_key": "x"}},
            {"module": "provider-openai", "config": {"api_key": "x"}},
            {"module": "provider-openai-compatible", "config": {"base_url": "http://localhost:1/v1", "model": "x"}},
            "provider-offline",
        ],
        "tools": ["tool-web"],
        "hooks": ["hooks-otel"],
    }
    async with AmplifierSession(plan) as session:
        for failure in session.failures:
            print(failure.module_id, failure.error)

anyio.run(main)
"""
    finished = empty.python(program, tmp_path)
    assert finished.returncode == 0, finished.stderr
    named = dict(re.findall(r"^(\S+) .*amplifier\[(\w+)\]", finished.stdout, re.MULTILINE))
    assert named == {
        "provider-anthropic": "anthropic",
        "provider-openai": "openai",
        "provider-openai-compatible": "openai",
        "tool-web": "providers",
        "hooks-otel": "otel",
    }


def test_strategies_name_missing_extra(empty: Environment, tmp_path: Path) -> None:
    finished = empty.python("import amplifier.conformance.strategies", tmp_path)
    assert "MissingExtraError" in finished.stderr
    assert "amplifier[testing]" in finished.stderr


def test_plan_schema_can_be_read(empty: Environment, tmp_path: Path) -> None:
    program = """
import json
from importlib.resources import files
from amplifier.plan import plan_schema
assert json.loads(files("amplifier.plan").joinpath("mount-plan.schema.json").read_text()) == plan_schema()
"""
    finished = empty.python(program, tmp_path)
    assert finished.returncode == 0, finished.stderr
