"""Every public argument of the kernel, wrong: a clear error of the documented kind, and nothing has changed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from amplifier import PlanError
from tests._support.small_agent import agent


def state(session):
    """Everything that a refused call could have changed."""
    coordinator = session.coordinator
    return (
        {
            point: dict(value) if isinstance(value, dict) else value
            for point, value in coordinator.mount_points.items()
        },
        coordinator.to_dict(),
        coordinator.channels,
        coordinator.hooks.list_handlers(),
        repr(coordinator.cancellation),
        attrs.astuple(session.statistics()),
        session.status.status,
        coordinator._current_turn_injections,
    )


def handler(event, data):
    return None


COORDINATOR = [
    ("mount", (None, object()), ValueError, "Unknown mount point"),
    ("mount", ("tool", object()), ValueError, "expected one of"),
    ("mount", ("hooks", object()), ValueError, "HookRegistry"),
    ("mount", ("tools", object()), ValueError, "Name required for tools"),
    ("mount", ("session", object()), ValueError, "'module-source-resolver'"),
    ("mount", ("tools", object(), 5), TypeError, "must be a str"),
    ("mount", ("tools", SimpleNamespace(name=b"x")), TypeError, "must be a str"),
    ("mount", ("providers", object()), ValueError, "Name required for providers"),
    ("unmount", ("nowhere",), ValueError, "Unknown mount point"),
    ("unmount", ("tools",), ValueError, "Name required to unmount"),
    ("get", ("agents",), ValueError, "Unknown mount point"),
    ("get_mounted", (5,), ValueError, "Unknown mount point"),
    ("get", (["tools"],), ValueError, "Unknown mount point"),
    ("register_capability", ("", 1), TypeError, r"non-empty str such as 'agents\.list'"),
    ("register_capability", (None, 1), TypeError, "non-empty str"),
    ("register_capability", (b"x", 1), TypeError, "non-empty str"),
    ("register_contributor", ("", "n", len), TypeError, "channel must be a non-empty str"),
    ("register_contributor", (5, "n", len), TypeError, "channel must be a non-empty str"),
    ("register_contributor", ("x", None, len), TypeError, "name must be a non-empty str"),
    ("register_contributor", ("x", "n", "callback"), TypeError, "needs a callable"),
    ("start_soon", ("fn",), TypeError, "start_soon needs an async function"),
    ("start_soon", (None,), TypeError, "start_soon needs an async function"),
]

REGISTRATIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"event": 5}, TypeError, "non-empty str; got 5"),
    ({"event": ""}, TypeError, "non-empty str; got ''"),
    ({"event": ["tool:pre"]}, TypeError, "non-empty str; got ['tool:pre']"),
    ({"event": None}, TypeError, "non-empty str; got None"),
    ({"handler": None}, TypeError, "must be callable as handler(event, data); got None"),
    ({"handler": "print"}, TypeError, "must be callable as handler(event, data); got 'print'"),
    ({"priority": "high"}, TypeError, "must be an int (lower runs earlier); got 'high'"),
    ({"priority": 1.5}, TypeError, "must be an int (lower runs earlier); got 1.5"),
    ({"priority": True}, TypeError, "must be an int (lower runs earlier); got True"),
    ({"priority": None}, TypeError, "must be an int (lower runs earlier); got None"),
    ({"name": 5}, TypeError, "must be a str or None; got 5"),
    ({"timeout": "3"}, TypeError, "must be a number of seconds or None, got '3'"),
    ({"timeout": True}, TypeError, "must be a number of seconds or None, got True"),
    (
        {"timeout": 0},
        ValueError,
        "a positive, finite number of seconds, got 0; None means no limit",
    ),
    ({"timeout": -1}, ValueError, "a positive, finite number of seconds, got -1"),
    ({"timeout": float("nan")}, ValueError, "a positive, finite number of seconds, got nan"),
    ({"timeout": float("inf")}, ValueError, "a positive, finite number of seconds, got inf"),
    ({"timeout": 10**400}, ValueError, "a positive, finite number of seconds, got 1000"),
    ({"on_failure": "ignore"}, ValueError, "on_failure must be 'continue' or 'deny'; got 'ignore'"),
    ({"on_failure": True}, ValueError, "on_failure must be 'continue' or 'deny'; got True"),
    ({"on_failure": []}, ValueError, "on_failure must be 'continue' or 'deny'; got []"),
]

HOOKS = [
    *(
        ("register", {"event": "e", "handler": handler, **wrong}, error, words)
        for wrong, error, words in REGISTRATIONS
    ),
    ("on", {"event": "e", "handler": None}, TypeError, "must be callable"),
    ("unregister", {"name": 5}, TypeError, "the name a handler was registered under, a str; got"),
    ("unregister", {"name": None}, TypeError, "a str"),
    ("list_handlers", {"event": 5}, TypeError, "an event's name or None; got"),
    ("list_handlers", {"event": b"e"}, TypeError, "an event's name or None"),
]

SESSION = [
    ("execute", (None,), {}, TypeError, "a prompt must be a str"),
    ("execute", (b"hi",), {}, TypeError, "a prompt must be a str, or a list .*, got bytes"),
    (
        "execute",
        (["hi", 5],),
        {},
        TypeError,
        r"prompt\[1\]: expected a str or a content block, got int",
    ),
    ("execute", ("hi",), {"timeout": 0}, ValueError, "positive, finite number of seconds"),
    ("execute", ("hi",), {"timeout": -1}, ValueError, "positive, finite number of seconds"),
    ("execute", ("hi",), {"timeout": float("nan")}, ValueError, "positive, finite"),
    ("execute", ("hi",), {"timeout": float("inf")}, ValueError, "None means no limit"),
    ("execute", ("hi",), {"timeout": 10**400}, ValueError, "positive, finite"),
    ("execute", ("hi",), {"timeout": True}, TypeError, "number of seconds or None"),
    ("execute", ("hi",), {"timeout": "5"}, TypeError, "number of seconds or None"),
]


def ids(row):
    return row if isinstance(row, str) and row.isidentifier() else None


@pytest.mark.parametrize(("method", "arguments", "error", "words"), COORDINATOR, ids=ids)
@pytest.mark.parametrize("through", ["coordinator", "view"])
async def test_coordinator_refuses(through, method, arguments, error, words):
    async with agent() as session:
        target = (
            session.coordinator
            if through == "coordinator"
            else session.coordinator.view_for("tool-a")
        )
        before = state(session)
        with pytest.raises(error, match=words):
            getattr(target, method)(*arguments)
        assert state(session) == before


@pytest.mark.parametrize(("method", "arguments", "error", "words"), HOOKS, ids=ids)
@pytest.mark.parametrize("through", ["registry", "view"])
async def test_registry_refuses(through, method, arguments, error, words):
    async with agent() as session:
        coordinator = session.coordinator
        target = (
            coordinator.hooks if through == "registry" else coordinator.view_for("hooks-a").hooks
        )
        before = state(session)
        with pytest.raises(error, match=re.escape(words)):
            getattr(target, method)(**arguments)
        assert state(session) == before


@pytest.mark.parametrize(("method", "arguments", "options", "error", "words"), SESSION, ids=ids)
async def test_session_refuses_and_continues(method, arguments, options, error, words):
    async with agent() as session:
        before = state(session)
        with pytest.raises(error, match=words):
            await getattr(session, method)(*arguments, **options)
        assert state(session) == before
        assert await session.execute("hi") == "hi"


async def test_plan_broken_before_opening_is_refused():
    session = agent()
    session.config["session"]["deadlines"] = {"hook": -1}
    with pytest.raises(PlanError, match=r"\$\.session\.deadlines\.hook"):
        async with session:
            pass
    assert session.statistics().state == "closed"
    del session.config["session"]["deadlines"]
    async with session:
        assert await session.execute("hi") == "hi"
