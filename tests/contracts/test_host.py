"""The host as modules see it: exactly these members, with exactly these parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from amplifier.contracts import DEFAULT, Cancellation, Coordinator, Hooks, Inherited, Session

Members = dict[str, str | None]
"""By name, what a member takes; None for what is not called."""

HOOKS: Members = {
    "register": "event, handler, priority=0, name=None, *, timeout=DEFAULT, on_failure=None, fields=None, on_demand=False",
    "on": "event, handler, priority=0, name=None, *, timeout=DEFAULT, on_failure=None, fields=None, on_demand=False",
    "async emit": "event, data",
    "async emit_and_collect": "event, data, timeout=1.0",
    "unregister": "name",
    "list_handlers": "event=None",
    "has_handlers": "event, field=None",
    "set_default_fields": "**fields",
}

CANCELLATION: Members = {
    "state": None,
    "is_cancelled": None,
    "is_graceful": None,
    "is_immediate": None,
    "running_tools": None,
    "running_tool_names": None,
    "request_graceful": "grace=None, *, reason=None",
    "request_immediate": "*, reason=None",
    "request_cancellation": "",
    "reset": "",
    "register_child": "token, /",
    "unregister_child": "token, /",
    "register_tool_start": "tool_call_id, tool_name, /",
    "register_tool_complete": "tool_call_id, /",
    "on_cancel": "callback",
    "async trigger_callbacks": "",
}

SESSION: Members = {
    "session_id": None,
    "parent_id": None,
    "config": None,
    "async execute": "prompt",
    "fork": "overlay=None, *, session_id=None, inherit=True",
    "async __aenter__": "",
    "async __aexit__": "exc_type, exc, traceback",
}

COORDINATOR: Members = {
    "session": None,
    "session_id": None,
    "parent_id": None,
    "config": None,
    "loader": None,
    "session_state": None,
    "hooks": None,
    "mount_points": None,
    "cancellation": None,
    "channels": None,
    "injection_budget_per_turn": None,
    "injection_size_limit": None,
    "approval_system": None,
    "display_system": None,
    "turn_number": None,
    "mount": "mount_point, module, /, name=None",
    "unmount": "mount_point, /, name=None",
    "get": "mount_point, /, name=None",
    "get_mounted": "mount_point, /",
    "owner_of": "mount_point, /, name=None",
    "register_cleanup": "fn, /",
    "register_capability": "name, value",
    "get_capability": "name",
    "register_contributor": "channel, name, callback",
    "async collect_contributions": "channel",
    "async process_hook_result": "result, event, hook_name='unknown'",
    "register_step_wrapper": "wrapper, /",
    "async run_step": "step, run, /, *, admit=None, limiter=None",
    "async cleanup": "",
    "reset_turn": "",
    "request_cancel": "immediate=False",
    "start_soon": "fn, /, *args, name=None, fatal=False",
    "async host": "context_manager, /, *, name=None",
    "async run_section": "fn, /, *args, name=None, shield=False",
    "to_dict": "",
}

HOST: list[tuple[type, Members]] = [
    (Hooks, HOOKS),
    (Cancellation, CANCELLATION),
    (Session, SESSION),
    (Coordinator, COORDINATOR),
]


def shape(protocol: type) -> Members:
    """Every member by name, with its parameters, or None for what is not called."""
    found: Members = dict.fromkeys(inspect.get_annotations(protocol))
    for name, value in vars(protocol).items():
        if isinstance(value, property):
            found[name] = None
        elif inspect.isfunction(value) and value.__doc__:
            signature = inspect.signature(value)
            parameters = [
                parameter.replace(annotation=parameter.empty) for parameter in list(signature.parameters.values())[1:]
            ]
            text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))[1:-1]
            found[("async " if inspect.iscoroutinefunction(value) else "") + name] = text
    return found


def stand_in(members: Members, *, without: str = "") -> Any:
    """An object with members of these names and nothing behind them."""
    names = {name.removeprefix("async ") for name in members} - {without}
    return type("StandIn", (), dict.fromkeys(names, lambda self: None))()


@pytest.mark.parametrize(("protocol", "expected"), HOST)
def test_the_host_has_exactly_the_members_it_promises(protocol: type, expected: Members) -> None:
    assert shape(protocol) == expected


@pytest.mark.parametrize(("protocol", "expected"), HOST)
def test_an_object_with_every_member_passes(protocol: type, expected: Members) -> None:
    assert isinstance(stand_in(expected), protocol)


@pytest.mark.parametrize(
    ("protocol", "expected", "missing"),
    [(protocol, expected, name.removeprefix("async ")) for protocol, expected in HOST for name in expected],
)
def test_an_object_that_lacks_one_member_fails(protocol: type, expected: Members, missing: str) -> None:
    assert not isinstance(stand_in(expected, without=missing), protocol)


def test_the_default_deadline_is_neither_a_number_nor_no_limit() -> None:
    assert DEFAULT is Inherited.DEFAULT
    assert DEFAULT is not None
    assert not isinstance(DEFAULT, int | float)
    assert repr(DEFAULT) == "DEFAULT"
