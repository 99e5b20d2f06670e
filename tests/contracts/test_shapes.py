"""The shapes of the contracts: exactly these members, with exactly these parameters; what fits each Protocol and what does not."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from amplifier.contracts import (
    DEFAULT,
    ApprovalProvider,
    ApprovalSystem,
    AsyncModuleSourceResolver,
    Cancellation,
    ContextManager,
    Coordinator,
    DisplaySystem,
    Handler,
    HookHandler,
    Hooks,
    Inherited,
    ModuleSource,
    ModuleSourceResolver,
    MountFunction,
    OnFailure,
    OnSessionReady,
    Orchestrator,
    Provider,
    Session,
    SimpleMount,
    StructuredMount,
    Tool,
    UserInput,
)
from amplifier.models import HookResult

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

CONTEXT: Members = {
    "async add_message": "message",
    "async get_messages_for_request": "token_budget=None, provider=None",
    "async get_messages": "",
    "async set_messages": "messages",
    "async clear": "",
}

PROVIDER: Members = {
    "name": None,
    "get_info": "",
    "async list_models": "",
    "async complete": "request, **kwargs",
    "parse_tool_calls": "response",
}

SHAPES: list[tuple[type, Members]] = [
    (Hooks, HOOKS),
    (Cancellation, CANCELLATION),
    (Session, SESSION),
    (Coordinator, COORDINATOR),
    (ContextManager, CONTEXT),
    (Provider, PROVIDER),
    (Orchestrator, {"async execute": "prompt, context, providers, tools, hooks, **kwargs"}),
    (Tool, {"name": None, "description": None, "async execute": "input"}),
    (DisplaySystem, {"show_message": "message, level, source='hook'"}),
    (ApprovalProvider, {"async request_approval": "request"}),
    (ApprovalSystem, {"async request_approval": "prompt, options, timeout, default"}),
    (UserInput, {"async request_input": "prompt, schema, timeout"}),
    (ModuleSource, {"resolve": ""}),
    (ModuleSourceResolver, {"resolve": "module_id, profile_hint=None, /"}),
    (AsyncModuleSourceResolver, {"async async_resolve": "module_id, profile_hint=None, /"}),
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


@pytest.mark.parametrize(("protocol", "expected"), SHAPES)
def test_a_protocol_has_exactly_the_members_it_promises(protocol: type, expected: Members) -> None:
    assert shape(protocol) == expected


@pytest.mark.parametrize(("protocol", "expected"), SHAPES)
def test_an_object_with_every_member_passes(protocol: type, expected: Members) -> None:
    assert isinstance(stand_in(expected), protocol)


@pytest.mark.parametrize(
    ("protocol", "expected", "missing"),
    [(protocol, expected, name.removeprefix("async ")) for protocol, expected in SHAPES for name in expected],
)
def test_an_object_that_lacks_one_member_fails(protocol: type, expected: Members, missing: str) -> None:
    assert not isinstance(stand_in(expected, without=missing), protocol)


def test_the_default_deadline_is_neither_a_number_nor_no_limit() -> None:
    assert DEFAULT is Inherited.DEFAULT
    assert DEFAULT is not None
    assert not isinstance(DEFAULT, int | float)
    assert repr(DEFAULT) == "DEFAULT"


class Folder:
    def resolve(self) -> Path:
        return Path()


class Workspace:
    def resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder()


class WorkspaceOfToday:
    """The later spelling, with both hints."""

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> ModuleSource:
        return Folder()


class Registry:
    async def async_resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder()


def test_resolvers_that_wait_and_those_that_do_not_are_told_apart_also_for_a_type_checker() -> None:
    resolvers: list[ModuleSourceResolver] = [Workspace(), WorkspaceOfToday()]
    waiting: AsyncModuleSourceResolver = Registry()
    assert all(isinstance(resolver, ModuleSourceResolver) for resolver in resolvers)
    assert isinstance(waiting, AsyncModuleSourceResolver)
    assert not isinstance(Registry(), ModuleSourceResolver)
    assert not isinstance(Workspace(), AsyncModuleSourceResolver)


class Watcher:
    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        return HookResult()


async def watch(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult()


def watch_in_place(event: str, data: dict[str, Any]) -> None: ...


def test_functions_and_objects_are_handlers_also_for_a_type_checker() -> None:
    handlers: list[HookHandler] = [Watcher(), watch]
    registered: list[Handler] = [*handlers, watch_in_place]
    assert all(isinstance(handler, HookHandler) for handler in registered)


def test_a_failing_handler_is_skipped_or_denies() -> None:
    assert get_args(OnFailure) == ("continue", "deny")


# ── mount functions ──────────────────────────────────────────────────────────────────────────────


async def mount_with_cleanup(coordinator: Coordinator, config: dict[str, Any]) -> Callable[[], None]:
    return coordinator.hooks.register("tool:pre", lambda event, data: None)


async def mount_and_decline(coordinator: Coordinator, config: dict[str, Any]) -> None: ...


@asynccontextmanager
async def mount_structured(coordinator: Coordinator, config: dict[str, Any]) -> AsyncIterator[None]:
    yield


async def on_session_ready(coordinator: Coordinator) -> None: ...


def test_every_lifetime_form_fits_the_type_of_mount_functions() -> None:
    simple: list[SimpleMount] = [mount_with_cleanup, mount_and_decline]
    structured: StructuredMount = mount_structured
    every: list[MountFunction] = [*simple, structured]
    ready: OnSessionReady = on_session_ready
    assert all(callable(function) for function in [*every, ready])
