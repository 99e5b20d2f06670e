"""The programs of "Your first agent" with a key: they take the real provider. The service is a third-party mock."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support.programs import run_program
from tests._support.tree import ROOT
from tests.docs.test_tutorials import blocks_of
from tests.modules.providers.aimock import Aimock, running_aimock

QUESTION = "What is in this folder, and who is Anna?"
FIXTURES = {
    "fixtures": [
        {
            "match": {"userMessage": "summarise notes.md", "hasToolResult": False},
            "response": {
                "content": "I read it.",
                "toolCalls": [
                    {"id": "call_1", "name": "read_file", "arguments": {"file_path": "notes.md"}}
                ],
            },
        },
        {
            "match": {"userMessage": "summarise notes.md", "hasToolResult": True},
            "response": {"content": "Milk, and a boat."},
        },
        {
            "match": {"userMessage": QUESTION},
            "response": {"content": "Notes. A person with a boat."},
        },
    ]
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    fixtures = tmp_path_factory.mktemp("service") / "fixtures.json"
    fixtures.write_text(json.dumps(FIXTURES))
    with running_aimock(fixtures) as running:
        yield running


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The reader's folder, with the files of the tutorial."""
    folder = tmp_path / "desk"
    folder.mkdir()
    page = (ROOT / "docs" / "tutorial" / "first-agent.md").read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
    return folder


def with_a_key(service: Aimock, *command: str, desk: Path) -> str:
    environment = {
        **os.environ,
        "ANTHROPIC_API_KEY": "a-key-of-the-test",
        "ANTHROPIC_BASE_URL": service.url,
        "AMPLIFIER_HOME": str(desk.parent / "home"),
    }
    ended = run_program([sys.executable, *command], cwd=desk, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_watch_program_uses_provider_with_key(service, desk):
    output = with_a_key(service, "watch.py", desk=desk)
    assert output.splitlines() == [
        "I read it.[read_file {'file_path': 'notes.md'}]",
        "[read_file succeeded]",
        "Milk, and a boat.",
        "17 characters",
    ]


@pytest.mark.slow
def test_command_line_uses_provider_with_key(service, desk):
    output = with_a_key(service, "-m", "amplifier", "run", "-q", QUESTION, desk=desk)
    assert output == "Notes. A person with a boat.\n"
