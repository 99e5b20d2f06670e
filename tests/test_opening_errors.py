"""Failures of opening, as a program, `run_sync` and a web handler meet them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierError, ModuleLoadError, agent, run_sync
from amplifier.errors import SessionBusyError
from amplifier.testing import MockProvider, script
from tests._support.programs import run_program
from tests._support.tree import ROOT
from tests.examples._server import serving
from tests.examples.test_web_service import PROGRAM, events, post


class Broken:
    """A tool whose description cannot be read."""

    name = "broken"

    @property
    def description(self) -> str:
        raise ZeroDivisionError("no description")


async def mount_nothing(coordinator: Any, config: dict[str, Any]) -> None:
    raise ZeroDivisionError("cannot be mounted")


FAILURES: list[tuple[Any, dict[str, Any], str]] = [
    ("anthropic:claude-x", {}, "export ANTHROPIC_API_KEY=..."),
    ("offline", {"tools": ["tool-nowhere"]}, "tool-nowhere"),
    ("offline", {"tools": [Broken]}, "Broken"),
    ("offline", {"tools": [mount_nothing]}, "cannot be mounted"),
    ("anthropic:claude-x", {"tools": ["tool-nowhere"]}, "tool-nowhere"),
]


@pytest.mark.parametrize(("model", "options", "words"), FAILURES)
async def test_opening_raises_own_error(model, options, words):
    with pytest.raises(AmplifierError, match=re.escape(words)):
        async with agent(model, **options):
            pass


async def test_foreign_error_names_module_and_cause():
    with pytest.raises(ModuleLoadError, match="mount-nothing") as caught:
        async with agent("offline", tools=[mount_nothing]):
            pass
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_busy_session_is_own_error():
    begun, go = anyio.Event(), anyio.Event()

    async def wait() -> str:
        begun.set()
        await go.wait()
        return "done"

    async with (
        agent(script(("wait", {}), "Done."), tools=[wait]) as session,
        anyio.create_task_group() as group,
    ):
        group.start_soon(session.execute, "go")
        await begun.wait()
        with pytest.raises(SessionBusyError) as caught:
            await session.execute("me too")
        assert isinstance(caught.value, AmplifierError)
        go.set()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("model", "options", "words"), FAILURES)
def test_run_sync_raises_own_error(backend, model, options, words):
    with pytest.raises(AmplifierError, match=re.escape(words)):
        run_sync("hello", model, backend=backend, **options)


def test_several_failures_can_be_split():
    with pytest.raises(ExceptionGroup) as caught:
        run_sync("hello", MockProvider([]), tools=["tool-nowhere", mount_nothing])
    assert isinstance(caught.value, AmplifierError)
    assert caught.group_contains(ModuleLoadError, match="cannot be mounted")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_readme_program_prints_line_to_type(backend, tmp_path: Path):
    program = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert program is not None
    text = program[1].replace("anyio.run(main)", f'anyio.run(main, backend="{backend}")')
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    ended = run_program([sys.executable, "program.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "export ANTHROPIC_API_KEY=..." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 4


def test_missing_key_reaches_web_page(tmp_path: Path):
    (tmp_path / "web_service.py").write_text(PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    start = "import sys; sys.path.insert(0, '.'); import web_service, uvicorn; uvicorn.run(web_service.app, port=0)"
    with (
        serving("-c", start, cwd=tmp_path) as server,
        post(server, "/conversations/anna", prompt="hi") as response,
    ):
        ((kind, message),) = events(response)
    assert kind == "error"
    assert "export ANTHROPIC_API_KEY=..." in message
