"""Servers with a URL: nothing is called by default, headers and logins are sent, calls are paced, 429 is waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.cli.commands.validate import login_for
from amplifier.conformance.report import Report
from amplifier.conformance.tool_servers.run import check_tools, examination_of
from tests.modules.tools.mcp.desk import served
from tests.modules.tools.mcp.test_oauth import logged_in

HERE = Path(__file__).parent
TOOLS = [
    "read_log",
    "how_many_run",
    "read_cached",
    "one_at_a_time",
    "read_words",
    "read_stack",
    "pop",
    "define",
    "finish",
    "ask",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"),
]


@contextmanager
def serving(notes: Path, limit: str = "") -> Iterator[str]:
    command = [sys.executable, str(HERE / "sound.py"), "0", str(notes), limit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=notes.parent) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


def examine(url: str, **options: Any) -> Report:
    # A rate that no test waits for.
    return anyio.run(partial(check_tools, *examination_of(url, **{"rate": 1000.0, **options})))


def calls(notes: Path) -> list[tuple[float, str]]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(float(time), what) for time, _, what in (line.partition(" ") for line in lines)]


def test_nothing_is_called_by_default_not_even_a_name_that_no_tool_has(tmp_path):
    with serving(tmp_path / "notes") as url:
        report = examine(url)
    assert calls(tmp_path / "notes") == []
    assert report.verdict == "unchecked"
    assert "neither called nor skipped: read_log" in str(report)


def test_headers_are_sent_and_are_in_no_report(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_KEY", "hunter2-hunter2")
    with serving(tmp_path / "notes") as url:
        report = examine(
            url, call=["read_words"], headers={"X-Key": "${SERVICE_KEY}"}, max_calls=20
        )
    assert {what for _, what in calls(tmp_path / "notes")} == {"hunter2-hunter2"}
    assert report.violations == [], str(report)
    assert "hunter2" not in str(report)


def test_no_more_calls_are_made_in_a_second_than_the_rate_allows(tmp_path):
    with serving(tmp_path / "notes") as url:
        examine(url, call=["one_at_a_time"], rate=4.0, max_calls=12)
    times = [time for time, _ in calls(tmp_path / "notes")]
    assert len(times) > 8
    # A call takes its way, so the time between two is measured with some tolerance.
    assert all(later - earlier > 0.9 for earlier, later in zip(times, times[4:], strict=False)), (
        times
    )


def test_too_many_requests_are_waited_for_and_break_no_clause(tmp_path):
    with serving(tmp_path / "notes", "3") as url:
        skip = [name for name in TOOLS if not name.startswith("read_w")]
        report = examine(url, call=["read_words"], skip=skip, max_calls=20)
    assert [what for _, what in calls(tmp_path / "notes")].count("429") > 5
    assert (report.violations, report.verdict) == ([], "conforms"), str(report)


def test_a_server_that_lets_no_call_through_is_not_judged(tmp_path):
    with serving(tmp_path / "notes", "never") as url:
        report = examine(url, call=["read_words"])
    assert report.verdict == "unchecked"
    assert report.violations == []
    assert "HTTP 429 to 10 tries; lower --rate" in str(report)
    # It is left alone at once.
    assert len(calls(tmp_path / "notes")) < 40


@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_the_login_of_a_configured_server_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    tokens = tmp_path / "tokens"
    with served("sdk_oauth_server.py") as port:
        url = f"http://127.0.0.1:{port}/mcp"
        anyio.run(logged_in, {"guarded": {"url": url, "oauth": {"token_directory": str(tokens)}}})
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "config.toml").write_text(
            f'[mcpServers.guarded]\nurl = "{url}"\noauth = {{ token_directory = "{tokens}" }}\n'
        )
        assert login_for(f"{url}/elsewhere") is None
        report = examine(url, call_all=True, auth=login_for(url), max_calls=20)
    assert (report.violations, report.verdict) == ([], "conforms"), str(report)
    token = next(
        word
        for file in tokens.iterdir()
        for word in file.read_text().split('"')
        if "token-" in word
    )
    assert token not in str(report)
