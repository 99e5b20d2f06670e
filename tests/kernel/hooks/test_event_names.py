"""A handler for an event whose name is nearly one of the catalogue: one warning, at the line that registers it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

from amplifier._internal.spelling import meant_event
from amplifier.errors import MisspellingWarning
from amplifier.events import CATALOGUE
from amplifier.kernel import HookRegistry
from tests._support.small_agent import agent


def watch(event: str, data: dict[str, Any]) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("event", "meant"),
    [
        ("tool:per", "tool:pre"),
        ("tool:pots", "tool:post"),
        ("tol:pre", "tool:pre"),
        ("toool:pre", "tool:pre"),
        ("Tool:Pre", "tool:pre"),
        ("session:strat", "session:start"),
        ("provider:reqest", "provider:request"),
        ("content_block:deta", "content_block:delta"),
        ("content-block:delta", "content_block:delta"),
        ("orchestrator:completed", "orchestrator:complete"),
        ("context:precompact", "context:pre_compact"),
        ("hook:timout", "hook:timeout"),
    ],
)
def test_a_name_one_slip_away_from_an_event_is_noticed(event, meant):
    assert meant_event(event) == meant


@pytest.mark.parametrize(
    "event",
    [
        # Emitted by published modules, or in a namespace of its own.
        *(
            "tool:selecting",
            "tool:selected",
            "task:agent_spawned",
            "provider:post",
            "orchestrator:turn_complete",
        ),
        *("delegate:agent_spawned", "recipe:start", "skill:loaded", "toll:paid"),
        *(
            "llm:request:raw",
            "session:start:debug",
            "plans:made",
            "hooks:end",
            "my-module:pre",
            "pre",
            "tool_pre",
            "tool",
        ),
        *(
            "tool:",
            ":pre",
            ":",
            "",
            "x" * 1000,
            "x:y:z",
            "llm2:request",
            "plans:start",
            "tools:pre",
        ),
    ],
)
def test_a_name_of_its_own_is_left_alone(event):
    assert meant_event(event) is None


def test_no_event_of_the_catalogue_is_a_misspelling_of_another():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hooks = HookRegistry()
        for event in [*CATALOGUE, "*"]:
            hooks.register(event, watch)
    assert caught == []


@pytest.mark.parametrize("method", ["register", "on"])
def test_the_warning_names_both_and_points_at_the_caller(method):
    hooks = HookRegistry()
    register = getattr(hooks, method)
    with pytest.warns(MisspellingWarning) as caught:
        register("tool:per", watch)
    here = sys._getframe().f_lineno - 1
    [warning] = caught
    assert str(warning.message) == (
        "a handler is registered for 'tool:per', which is not an event of the catalogue; did you mean 'tool:pre'?"
    )
    assert (warning.filename, warning.lineno) == (__file__, here)
    assert hooks.list_handlers("tool:per")["tool:per"] != []


async def test_the_warning_points_at_the_line_in_the_module():
    line = 0

    async def mount(coordinator, config):
        nonlocal line
        line = sys._getframe().f_lineno + 1
        coordinator.hooks.register("tool:per", watch)

    with pytest.warns(MisspellingWarning) as caught:
        async with agent(hooks={"hooks-x": mount}):
            pass
    [warning] = caught
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_names_of_the_catalogue_are_not_compared_and_others_only_once():
    hooks = HookRegistry()
    hooks.register("my-namespace:event", watch)
    before = meant_event.cache_info()
    for event in ("tool:pre", "*", "my-namespace:event", "my-namespace:event"):
        hooks.register(event, watch)
    after = meant_event.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 2)
