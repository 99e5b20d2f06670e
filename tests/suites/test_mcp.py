"""The official conformance suite of MCP: all required scenarios of both revisions.

The suite is a Node program. It plays the server for tool-mcp, and the client for both of our servers.
"""

from __future__ import annotations

import json
import os
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests._support import node_parts
from tests._support.forked import Forked
from tests._support.terminal import command
from tests._support.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
EXPECTED = HERE / "mcp_expected_failures.yaml"
PLAN = {
    "session": {"orchestrator": "loop-basic", "context": "context-simple"},
    "providers": [{"module": "provider-offline"}],
}
PACKAGE = "@modelcontextprotocol/conformance"
_SCENARIO = re.compile(r"^([✓✗]) (\S+): \d+ passed, \d+ failed", re.MULTILINE)


def run_suite(role: str, revision: str, folder: Path, *options: str) -> dict[str, bool]:
    """Run what a revision requires, and return which scenarios passed without a warning.

    Raises:
        AssertionError: The suite itself says that something is wrong; its output is the message.
    """
    program = node_parts.program(PACKAGE, "dist/index.js")
    words = [
        node_parts.node(),
        program,
        role,
        "--requirements",
        revision,
        "--timeout",
        "300000",
        "-o",
        str(folder),
    ]
    ended = subprocess.run(
        [*words, *options], capture_output=True, text=True, check=False, cwd=folder
    )
    names = required(role, revision)
    results = {
        name: mark == "✓" and not _has_warning(folder, name)
        for mark, name in _SCENARIO.findall(ended.stdout)
        if name in names
    }
    assert ended.returncode == 0, f"{results}\n{ended.stdout[-20_000:]}\n{ended.stderr[-2000:]}"
    return results


def _has_warning(folder: Path, name: str) -> bool:
    """Return whether a scenario missed something that is recommended. The summary doesn't say."""
    (kept,) = (
        *folder.glob(f"{name}-2*/checks.json"),
        *folder.glob(f"server-{name}-2*/checks.json"),
    )
    return any(
        check["status"] == "WARNING" for check in json.loads(kept.read_text(encoding="utf-8"))
    )


def required(role: str, revision: str) -> list[str]:
    """Return the names of the scenarios that a revision requires of a role."""
    text = Path(node_parts.program(PACKAGE, f"requirements/{revision}.yaml")).read_text(
        encoding="utf-8"
    )
    section = text.split(f"\n{role}:\n", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^  - (\S+)$", section, re.MULTILINE)


@contextmanager
def clients(backend: str, folder: Path, at_once: int = 3) -> Iterator[str]:
    """Run clients for the suite, few at a time, because it starts one for every scenario at once.

    Yields:
        The command for the suite.
    """
    slots, starting = threading.Semaphore(at_once), threading.Lock()
    words = [sys.executable, str(ROOT / "examples" / "mcp_conformance_client.py")]

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request: dict[str, Any] = json.loads(self.rfile.readline())
            environment = {**os.environ, **request["variables"], "AMPLIFIER_BACKEND": backend}
            with slots:
                with starting:
                    process = Forked(
                        [*words, request["address"]],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                        env=environment,
                    )
                with process:
                    output, _ = process.communicate(timeout=120)
            answer = {"output": output, "status": process.returncode}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    path = folder / "clients"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as broker:
        thread = threading.Thread(target=broker.serve_forever)
        thread.start()
        try:
            yield f"{sys.executable} -SE {HERE / '_mcp_client.py'} {path}"
        finally:
            broker.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("revision", "backend"), [("2025-11-25", "trio"), ("2026-07-28", "asyncio")]
)
def test_client_passes_revision_requirements(revision, backend, tmp_path):
    with clients(backend, tmp_path) as client:
        results = run_suite("client", revision, tmp_path, "--command", client)
    assert results == dict.fromkeys(required("client", revision), True)


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[str]:
    """Start a server that prints its address; yield the address."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    with Forked(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            address = None
            while address is None:
                lines.append(process.stdout.readline())
                assert lines[-1], "".join(lines)
                address = re.search(r"http://\S+/mcp", lines[-1])
            draining = threading.Thread(target=process.stdout.read)
            draining.start()
            yield address.group()
        finally:
            process.kill()
        draining.join()


@pytest.mark.parametrize(
    ("revision", "backend"), [("2025-11-25", "asyncio"), ("2026-07-28", "trio")]
)
def test_example_server_passes_revision_requirements(revision, backend, tmp_path):
    words = [sys.executable, str(ROOT / "examples" / "mcp_conformance_server.py"), backend]
    with started(words, tmp_path) as address:
        results = run_suite("server", revision, tmp_path, "--url", address)
    assert results == dict.fromkeys(required("server", revision), True)


@pytest.mark.parametrize(
    ("revision", "backend"), [("2025-11-25", "trio"), ("2026-07-28", "asyncio")]
)
def test_agent_server_passes_applicable_requirements(revision, backend, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    commands = tmp_path / "config" / "amplifier" / "commands"
    commands.mkdir(parents=True)
    for name in ("test_simple_prompt", "test_prompt_with_arguments"):  # the suite's names
        (commands / f"{name}.md").write_text("Say hello to $ARGUMENTS.")
    words = command(
        "mcp",
        "serve",
        "plan.json",
        "--transport",
        "http",
        "--no-token",
        "--port",
        "0",
        "--backend",
        backend,
    )
    with started(words, tmp_path) as address:
        results = run_suite(
            "server", revision, tmp_path, "--url", address, "--expected-failures", str(EXPECTED)
        )
    assert results.keys() == set(required("server", revision))
    failed = {name for name, passed in results.items() if not passed}
    assert failed == results.keys() & set(
        re.findall(r"^  - ([\w-]+)", EXPECTED.read_text(), re.MULTILINE)
    )
