"""The folders and the plan of the command line's tests, and an editor on each backend that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli._scripted_agent import write_plan
from tests.cli.conftest import backend, home, plan, workdir
from tests.servers.acp._editor import OpenEditor, open_editor, plan_with

__all__ = ["backend", "home", "plan", "shared", "workdir"]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenEditor]:
    """One agent process for all tests that neither stop it nor need a plan of their own; each has sessions of its own.

    The process does not run where the sessions work.
    """
    folder = tmp_path_factory.mktemp("editor")
    (folder / "work").mkdir()
    plan = plan_with(
        str(write_plan(folder)), folder, tools=["tool-filesystem", "tool-bash", "tool-todo"]
    )
    with open_editor(request.param, plan, folder / "home", folder / "work") as editor:
        yield editor
