"""The built-in modules conform: all of them with the quick profile here, with the thorough one with ``THOROUGH_CONFORMANCE=1``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from amplifier.conformance import Report
from tests._support.tree import TESTS
from tests.conformance.modules import check, write_module

THOROUGH = bool(os.environ.get("THOROUGH_CONFORMANCE"))
SEEDS = (0, 1, 2) if THOROUGH else (0,)
SMALL_SERVER = str(TESTS / "modules" / "tools" / "mcp" / "small_server.py")
SERVICE = {"api_key": "a-key-that-opens-nothing", "base_url": "{service}/auto"}
CHECKED: dict[str, dict[str, Any]] = {
    "context-persistent": {"config": {"path": "{directory}/sessions"}},
    "context-simple": {},
    "hooks-approval": {},
    "hooks-logging": {"config": {"path": "{directory}/events.jsonl"}},
    "hooks-otel": {},
    "hooks-redaction": {},
    "loop-basic": {},
    "loop-events": {},
    "loop-streaming": {},
    "provider-anthropic": {"config": SERVICE},
    "provider-mock": {},
    "provider-offline": {},
    "provider-openai": {"config": {**SERVICE, "base_url": "{service}/auto/v1"}},
    "provider-openai-compatible": {
        "config": {**SERVICE, "base_url": "{service}/auto/v1", "default_model": "test-model"}
    },
    "provider-replay": {},
    "tool-bash": {},
    "tool-filesystem": {},
    "tool-mcp": {
        "config": {"servers": {"small": {"command": sys.executable, "args": ["-SE", SMALL_SERVER]}}}
    },
    "tool-search": {},
    "tool-task": {"plan": {"agents": {"helper": {"description": "Helps."}}}},
    "tool-recall": {},
    "tool-todo": {},
    "tool-web": {"config": {"allow_private": ["{service_host}"]}},
}
"""Every module and its options: a fake service for those that need one, an agent for tool-task, a server for tool-mcp."""
QUICK = {"tool-todo"}
"""What `make test` checks."""
SLOW = {
    "context-simple",
    "hooks-approval",
    "loop-streaming",
    "provider-mock",
    "tool-filesystem",
}
"""One of each kind, marked slow. The others are long. `THOROUGH_CONFORMANCE=1` checks all thoroughly."""
SET_UP = {
    "hooks_traced.py": """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        from amplifier.modules.hooks.otel import mount, on_session_ready

        __amplifier_module_type__ = "hook"
        trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
    """,
    "provider_recorded.py": """
        from amplifier.modules.providers import mock as provider_mock, replay as provider_replay

        __amplifier_module_type__ = "provider"


        async def mount(coordinator, config):
            await provider_mock.mount(coordinator, {})
            file = f"{config['directory']}/{coordinator.session_id}.jsonl"
            cleanup = await provider_replay.mount(coordinator, {"cassette": file, "mode": "once"})
            await provider_replay.on_session_ready(coordinator)
            return cleanup
    """,
}
"""The modules that decline, in files that give them what they need."""
SET_UP_CONFIG = {"directory": "{directory}"}
BACKENDS = ("asyncio", "trio")
DECLINES = {"hooks-otel", "provider-replay"}
"""Modules that mount nothing without OpenTelemetry in the process, or a file of recordings; only
their mount is examined. `SET_UP` has the rest."""


def backends_of(place: int) -> tuple[str, ...]:
    # Each on one of the two here, to save time; on both with `THOROUGH_CONFORMANCE=1`.
    return BACKENDS if THOROUGH else BACKENDS[place % 2 :][:1]


def examined(module_id: str, seed: int) -> Report:
    backends = backends_of(list(CHECKED).index(module_id))
    return check(module_id, thorough=THOROUGH, seed=seed, backends=backends, **CHECKED[module_id])


def unexamined(report: Report) -> set[str]:
    # Whether both backends are the same is not seen on asyncio alone.
    alone = {"A18"} if report.backends == ["asyncio"] else set()
    return {outcome.id for outcome in report.clauses if outcome.status == "not_checked"} - alone


def test_no_module_is_forgotten():
    assert set(CHECKED) == {each.name for each in entry_points(group="amplifier.builtin_modules")}
    assert Path(SMALL_SERVER).is_file()


@pytest.mark.timeout(3600 if THOROUGH else 600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "module_id",
    [
        pytest.param(
            each,
            marks=[] if each in QUICK else pytest.mark.slow if each in SLOW else pytest.mark.long,
        )
        for each in CHECKED
    ],
)
def test_a_built_in_module_conforms(module_id, seed):
    report = examined(module_id, seed)
    is_examined = module_id not in DECLINES
    assert report.verdict == ("conforms" if is_examined else "unchecked"), str(report)
    assert report.violations == []
    assert bool(unexamined(report)) is not is_examined, unexamined(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SET_UP)
def test_a_built_in_module_that_needs_a_setup_conforms(name, tmp_path):
    file = write_module(tmp_path, SET_UP[name], name)
    report = check(
        file, config=SET_UP_CONFIG, seed=0, backends=backends_of(list(SET_UP).index(name))
    )
    assert report.ok, str(report)
