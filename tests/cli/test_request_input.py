"""A form of an MCP server, filled in at the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.cli.agent.approvals import AskAtTerminal
from amplifier.cli.agent.signals import SignalHandler
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.output import StandardStreams
from amplifier.contracts import UserInput

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City", "description": "Where to?"},
        "nights": {"type": "integer"},
        "smoking": {"type": "boolean", "default": False},
        "class": {"type": "string", "enum": ["first", "second"]},
        "note": {"type": "string"},
    },
    "required": ["city", "nights", "class"],
}


class Typed:
    """A keyboard on which these lines are typed."""

    def __init__(self, *lines: str | None) -> None:
        self.lines = list(lines)

    def discard_input(self) -> None:
        pass

    async def read_line(self) -> str | None:
        return self.lines.pop(0)


def asking(*lines: str | None) -> tuple[AskAtTerminal, Typed]:
    streams = StandardStreams()
    display = Display(streams, "text")
    keyboard = Typed(*lines)
    return AskAtTerminal(display, streams.err, keyboard, SignalHandler(display)), keyboard  # type: ignore[arg-type]


async def test_values_are_read_until_they_fit(capsys):
    asker, keyboard = asking("Paris\n", "many\n", "3\n", "\n", "third\n", "first\n", "\n")
    assert isinstance(asker, UserInput)
    values = await asker.request_input("The MCP server 'travel' asks:\n  Book?\x1b[2J", SCHEMA, 60)
    assert values == {"city": "Paris", "nights": 3, "smoking": False, "class": "first"}
    assert keyboard.lines == []
    shown = capsys.readouterr().err
    assert "City (Where to?): " in shown
    assert "Please give a whole number." in shown
    assert "Please give one of first, second." in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("lines", [(None,), ("Paris\n", None)])
async def test_end_of_input_declines(lines: Any):
    asker, _ = asking(*lines)
    assert await asker.request_input("Book?", SCHEMA, 60) is None


async def test_yes_and_no_are_understood():
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    for typed, value in (("YES\n", True), ("n\n", False)):
        asker, _ = asking("perhaps\n", typed)
        assert await asker.request_input("Sure?", schema, 60) == {"sure": value}
