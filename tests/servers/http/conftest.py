"""The folders and the plan of the command line's tests, and a server on each backend that tests share."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.node_parts import node, program
from tests.cli._scripted_agent import write_plan
from tests.cli.conftest import backend, home, plan, workdir
from tests.modules.hooks.otel.conftest import traces
from tests.servers.http._server import Server, running

__all__ = ["ag_ui", "backend", "home", "plan", "server", "traces", "workdir"]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One process for all tests that neither stop it nor need options: starting it costs more than most of them do.

    A test names its sessions by its own working directory, and at the end the process has to end by itself without a traceback.
    """
    folder = tmp_path_factory.mktemp("server")
    (folder / "work").mkdir()
    with running(request.param, write_plan(folder), folder / "home", folder / "work") as started:
        yield started


@pytest.fixture(scope="module")
def ag_ui() -> Iterator[Callable[..., Any]]:
    """Runs an agent with each prompt or answer in turn; returns what the client has seen. One process of Node for all tests of a file."""
    script = str(Path(__file__).with_name("_ag_ui_client.mjs"))
    words = [node(), script, program("@ag-ui/client", "dist/index.mjs")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:

        def run(server: Server, *steps: Any, **more: Any) -> Any:
            at = {
                "url": f"{server.address}/ag-ui",
                "token": server.token,
                "thread": secrets.token_hex(4),
            }
            given = {**at, "messages": [], "tools": [], "context": [], "steps": steps, **more}
            print(json.dumps(given), file=client.stdin, flush=True)
            assert client.stdout is not None
            return json.loads(client.stdout.readline())

        yield run
