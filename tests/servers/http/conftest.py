"""The folders and the plan of the command line's tests, and a server on each backend that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli._scripted_agent import write_plan
from tests.cli.conftest import backend, home, plan, workdir
from tests.modules.hooks.otel.conftest import traces
from tests.servers.http._server import Server, running

__all__ = ["backend", "home", "plan", "server", "traces", "workdir"]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process for all tests that neither stop it nor need options: starting it costs more than most of them do.

    A test names its sessions by its own working directory, and at the end the process has to end by itself without a traceback.
    """
    folder = tmp_path_factory.mktemp("server")
    (folder / "work").mkdir()
    with running(request.param, write_plan(folder), folder / "home", folder / "work") as started:
        yield started
