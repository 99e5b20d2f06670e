"""Sound tools that look faulty raise no alarm, and requests of a server are declined."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from amplifier.conformance.tool_servers.connection import open_link
from amplifier.conformance.tool_servers.run import check_tools, examination_of
from amplifier.conformance.tool_servers.subject import Subject
from tests.modules.tools.mcp.desk import SMALL

SOUND = f"{sys.executable} {Path(__file__).with_name('sound.py')}"
NO_FIELDS = {"type": "object", "properties": {}}
pytestmark = pytest.mark.slow


def test_sound_tools_raise_no_alarm():
    report = anyio.run(partial(check_tools, *examination_of(SOUND, call_all=True)))
    assert (report.violations, report.recommendations, report.verdict) == ([], [], "conforms"), str(
        report
    )


def test_a_verdict_says_in_its_first_line_what_was_not_examined():
    report = anyio.run(
        partial(
            check_tools, *examination_of(SOUND, call=["read_words"], skip=SKIPPED, max_calls=20)
        )
    )
    assert report.verdict == "conforms", str(report)
    assert str(report).startswith(
        "sound (mcp server): conforms where it was examined; not examined: S"
    )
    assert "some tools were examined in part" in report.summary


SKIPPED = [
    "read_log",
    "how_many_run",
    "read_cached",
    "one_at_a_time",
    "read_stack",
    "pop",
    "define",
    "finish",
    "ask",
]


@pytest.mark.parametrize(
    ("server", "tool", "given", "answer"),
    [
        (f"{sys.executable} -SE {SMALL} --all", "sample", {}, "not supported"),
        (
            f"{sys.executable} -SE {SMALL} --all",
            "elicit",
            {"message": "May I?", "requestedSchema": NO_FIELDS},
            "not supported",
        ),
        (SOUND, "ask", {}, "asked for input, which was declined"),
    ],
)
def test_requests_of_a_server_are_declined(server, tool, given, answer, tmp_path):
    async def ask():
        for name in ("work", "home"):
            (tmp_path / name).mkdir()
        async with open_link(Subject(kind="command", target=server), tmp_path) as link:
            return await link.call(tool, given, 60)

    reply = anyio.run(ask)
    assert answer in reply.text, reply
