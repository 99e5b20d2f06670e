"""``amplifier turns``, and the figures for OpenTelemetry."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from amplifier.cli.commands.turns import turns as turns_command
from amplifier.durable import UnknownTurnError, _reporting, open_engine
from tests._support.tree import ROOT
from tests.durable.agents import agent, answering, eventually, tool, until, working
from tests.durable.agents import open_engine as open_quick_engine


async def turns(*arguments: str, engine: Path) -> Result:
    invoke = partial(CliRunner().invoke, turns_command, ["--engine", str(engine), *arguments])
    return await anyio.to_thread.run_sync(invoke)


async def test_turns_are_listed_shown_and_stopped(tmp_path):
    file = tmp_path / "turns.db"
    async with open_engine(file) as engine:
        turn = await engine.start("anna", "go")
        listed = await turns("list", "--state", "queued", "--since", "1h", engine=file)
        assert (listed.exit_code, listed.stdout.split()[:2]) == (0, [turn, "queued"])
        assert listed.stderr.startswith("1 queued; the oldest open one is ")
        as_json = json.loads(
            (await turns("list", "--session", "bert", "--json", engine=file)).stdout
        )
        assert (as_json["turns"], as_json["counts"]["states"]) == ([], {"queued": 1})
        shown = json.loads((await turns("show", turn, "--json", engine=file)).stdout)
        assert (shown["session_id"], shown["state"], shown["attempt"]) == ("anna", "queued", 0)
        for command in ("resume", "release"):  # nothing happens to one that is queued
            assert (await turns(command, turn, engine=file)).exit_code == 0
        assert (await turns("stop", turn, "--reason", "enough", engine=file)).exit_code == 0
        assert (await engine.status(turn)).state == "stopped"
    unknown = await turns("show", "nothing", engine=file)
    assert isinstance(unknown.exception, UnknownTurnError)
    missing = await turns("list", engine=tmp_path / "other.db")
    assert (missing.exit_code, "there are no turns" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("work", "nowhere_at_all:make"), "No module named 'nowhere_at_all'; expected a function"),
        (("work", "json:make"), "has no attribute 'make'"),
        (("work", ":make"), "expected a function"),
        (("list", "-n", "9" * 30), "is not in the range"),
    ],
)
async def test_wrong_arguments_are_refused_with_reason(words, problem, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    async with open_engine(tmp_path / "turns.db"):
        refused = await turns(*words, engine=tmp_path / "turns.db")
    assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.output


WORKER = """
import anyio
from pathlib import Path
from tests.durable.agents import agent, answering, tool

async def pay(_):
    Path("begun").touch()
    while not Path("release").exists():
        await anyio.sleep(0.01)
    return "paid"

def make_session(session_id):
    return agent(answering([("pay", {})], "Paid."), tool("pay", pay, repeatable=False))(session_id)
"""


@pytest.mark.slow
async def test_terminated_worker_hands_turn_over_after_call(tmp_path):
    (tmp_path / "shop.py").write_text(WORKER)
    command = [
        sys.executable,
        "-m",
        "amplifier",
        "turns",
        "--engine",
        "turns.db",
        "work",
        "shop:make_session",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    async with open_engine(tmp_path / "turns.db") as engine:
        turn = await engine.start("anna", "go")
        async with await anyio.open_process(
            command, cwd=tmp_path, env=environment, stderr=None
        ) as worker:
            await eventually((anyio.Path(tmp_path) / "begun").exists)
            worker.send_signal(signal.SIGTERM)
            (tmp_path / "release").touch()
            with anyio.fail_after(60):
                assert await worker.wait() == 0
        status = await engine.status(turn)
        assert (status.state, status.attempt, status.takeovers) == ("queued", 1, 0)
        never = tool("pay", lambda given: pytest.fail("it was paid already"), repeatable=False)
        async with working(engine, agent(answering([("pay", {})], "Paid."), never)):
            await engine.resume(turn)  # in case that the plan of this process is another one
            await until(engine, turn, lambda now: now.is_final)


async def test_engine_is_named_by_text(tmp_path):
    async with open_engine(str(tmp_path / "turns.db"), poll=0.01) as engine:
        assert await engine.list() == []
    with pytest.raises(ValueError, match="postgresql://user"):
        async with open_engine("mysql://host/database"):
            pass


async def test_opentelemetry_gets_figures_about_turns(tmp_path, monkeypatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    monkeypatch.setattr("opentelemetry.metrics.get_meter", provider.get_meter)
    _reporting._instruments.cache_clear()
    try:
        async with open_quick_engine("sqlite", tmp_path) as engine:
            turn = await engine.start("anna", "go")
            await engine.start("anna", "go on", queue=True)
            async with working(engine, agent(answering("Done."))):
                assert await engine.result(turn) == "Done."
    finally:
        _reporting._instruments.cache_clear()
    found = figures(reader)
    provider.shutdown()
    assert found["amplifier.turns.ended", "completed"] >= 1
    assert found["amplifier.turns.attempts", None] >= 1
    assert found["amplifier.turns.delay", None] >= 1
    assert ("amplifier.turns.open", "queued") in found
    assert found["amplifier.turns.oldest", None] >= 0


def figures(reader: InMemoryMetricReader) -> dict[tuple[str, Any], float]:
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [
        each
        for one in data.resource_metrics
        for scope in one.scope_metrics
        for each in scope.metrics
    ]
    return {
        (metric.name, dict(point.attributes or {}).get("state")): getattr(
            point, "value", getattr(point, "count", 0)
        )
        for metric in metrics
        for point in metric.data.data_points
    }
