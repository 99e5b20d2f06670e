"""The built-in modules conform: all of them with the quick profile here, with the thorough one in ``make conformance``."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any

import anyio
import pytest

from amplifier.conformance import Report, check_module

THOROUGH = bool(os.environ.get("THOROUGH_CONFORMANCE"))
SEEDS = (0, 1, 2) if THOROUGH else (0,)
SERVICE = {"api_key": "a-key-that-opens-nothing", "base_url": "{service}/auto", "max_retries": 0}
CHECKED: dict[str, dict[str, Any]] = {
    "context-persistent": {"config": {"path": "{directory}/sessions"}},
    "context-simple": {},
    "hooks-approval": {},
    "hooks-logging": {"config": {"path": "{directory}/events.jsonl"}},
    "hooks-redaction": {},
    "loop-basic": {},
    "loop-events": {},
    "loop-streaming": {},
    "provider-anthropic": {"config": SERVICE},
    "provider-local": {},
    "provider-mock": {},
    "provider-offline": {},
    "provider-openai": {"config": {**SERVICE, "base_url": "{service}/auto/v1"}},
    "provider-openai-compatible": {
        "config": {**SERVICE, "base_url": "{service}/auto/v1", "default_model": "test-model"}
    },
    "tool-bash": {},
    "tool-filesystem": {},
    "tool-search": {},
    "tool-task": {"plan": {"agents": {"helper": {"description": "Helps."}}}},
    "tool-todo": {},
    "tool-web": {"config": {"allow_private": ["{service_host}"]}},
}
"""Every module and its options: a fake service for those that need one, an agent for tool-task."""
ONE_OF_EACH_TYPE = {"context-simple", "hooks-approval", "loop-basic", "provider-mock", "tool-todo"}
"""What `make test` checks; `make test-slow` checks the others."""
BACKENDS = ("asyncio", "trio")
DECLINES = {"provider-local"}
"""Modules that mount nothing without a model file of some hundred megabytes; only their mount is examined."""
NEVER_SUCCEED = {"tool-task"}
"""Tools whose calls need a real session with a model, so that what a successful call shows is not examined."""


def examined(module_id: str, seed: int) -> Report:
    async def run() -> Report:
        # Each on one of the two here, to save time; on both in `make conformance`.
        backends = BACKENDS if THOROUGH else BACKENDS[list(CHECKED).index(module_id) % 2 :][:1]
        return await check_module(module_id, thorough=THOROUGH, seed=seed, backends=backends, **CHECKED[module_id])

    return anyio.run(run)


def unexamined(report: Report) -> set[str]:
    # Whether both backends are the same is not seen on asyncio alone.
    alone = {"A18"} if report.backends == ["asyncio"] else set()
    return {outcome.id for outcome in report.clauses if outcome.status == "not_checked"} - alone


def test_no_module_is_forgotten():
    assert set(CHECKED) == {each.name for each in entry_points(group="amplifier.builtin_modules")}


@pytest.mark.timeout(3600 if THOROUGH else 600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "module_id",
    [pytest.param(each, marks=[] if each in ONE_OF_EACH_TYPE else pytest.mark.slow) for each in CHECKED],
)
def test_a_built_in_module_conforms(module_id, seed):
    report = examined(module_id, seed)
    is_examined = module_id not in DECLINES | NEVER_SUCCEED
    assert report.verdict == ("conforms" if is_examined else "unchecked"), str(report)
    assert report.violations == []
    assert bool(unexamined(report)) is not is_examined, unexamined(report)
