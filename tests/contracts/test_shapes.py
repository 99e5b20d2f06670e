"""The shapes of the contracts: what fits each Protocol, what does not, and how its methods are called."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from amplifier.contracts import (
    ApprovalProvider,
    ApprovalSystem,
    AsyncModuleSourceResolver,
    ContextManager,
    Coordinator,
    DisplaySystem,
    Handler,
    HookHandler,
    Hooks,
    ModuleSource,
    ModuleSourceResolver,
    MountFunction,
    OnFailure,
    OnSessionReady,
    Orchestrator,
    Provider,
    SimpleMount,
    StructuredMount,
    Tool,
)
from amplifier.models import (
    ApprovalRequest,
    ApprovalResponse,
    ChatRequest,
    ChatResponse,
    HookResult,
    ModelInfo,
    ProviderInfo,
    ToolCall,
)


class Memory:
    async def add_message(self, message: dict[str, Any]) -> None: ...

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        return []

    async def get_messages(self) -> list[dict[str, Any]]:
        return []

    async def set_messages(self, messages: list[dict[str, Any]]) -> None: ...

    async def clear(self) -> None: ...


class Silent:
    name = "silent"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="silent", display_name="Silent")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[])

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return []


class Parrot:
    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        **kwargs: Any,
    ) -> str:
        return prompt


class Board:
    def show_message(self, message: str, level: Literal["info", "warning", "error"], source: str = "hook") -> None: ...


class Porter:
    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        return ApprovalResponse(approved=False)


class Desk:
    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: Literal["allow", "deny"]
    ) -> str:
        return options[0]


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


class Watcher:
    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        return HookResult()


async def watch(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult()


def watch_in_place(event: str, data: dict[str, Any]) -> None: ...


def test_what_has_every_member_fits_also_for_a_type_checker() -> None:
    context: ContextManager = Memory()
    provider: Provider = Silent()
    orchestrator: Orchestrator = Parrot()
    display: DisplaySystem = Board()
    approvals: tuple[ApprovalProvider, ApprovalSystem] = (Porter(), Desk())
    source: ModuleSource = Folder()
    resolvers: tuple[ModuleSourceResolver, AsyncModuleSourceResolver] = (Workspace(), Registry())
    handlers: list[HookHandler] = [Watcher(), watch]
    registered: list[Handler] = [*handlers, watch_in_place]
    assert isinstance(context, ContextManager)
    assert isinstance(provider, Provider)
    assert isinstance(orchestrator, Orchestrator)
    assert isinstance(display, DisplaySystem)
    assert isinstance(approvals[0], ApprovalProvider)
    assert isinstance(approvals[1], ApprovalSystem)
    assert isinstance(source, ModuleSource)
    assert isinstance(resolvers[0], ModuleSourceResolver)
    assert isinstance(resolvers[1], AsyncModuleSourceResolver)
    assert isinstance(WorkspaceOfToday(), ModuleSourceResolver)
    assert all(isinstance(handler, HookHandler) for handler in handlers)
    assert all(callable(handler) for handler in registered)


MEMBERS = {
    ContextManager: (Memory, ["add_message", "get_messages_for_request", "get_messages", "set_messages", "clear"]),
    Provider: (Silent, ["name", "get_info", "list_models", "complete", "parse_tool_calls"]),
    Orchestrator: (Parrot, ["execute"]),
}


@pytest.mark.parametrize(("contract", "missing"), [(each, name) for each in MEMBERS for name in MEMBERS[each][1]])
def test_what_lacks_a_member_does_not_fit(contract: Any, missing: str) -> None:
    complete, names = MEMBERS[contract]
    members = {name: vars(complete)[name] for name in names if name != missing}
    assert not isinstance(type("Partial", (), members)(), contract)


def test_resolvers_that_wait_and_those_that_do_not_are_told_apart() -> None:
    assert not isinstance(Registry(), ModuleSourceResolver)
    assert not isinstance(Workspace(), AsyncModuleSourceResolver)


CALLS = [
    (ContextManager.add_message, True, "message"),
    (ContextManager.get_messages_for_request, True, "token_budget=None provider=None"),
    (ContextManager.get_messages, True, ""),
    (ContextManager.set_messages, True, "messages"),
    (ContextManager.clear, True, ""),
    (Provider.get_info, False, ""),
    (Provider.list_models, True, ""),
    (Provider.complete, True, "request **kwargs"),
    (Provider.parse_tool_calls, False, "response"),
    (Orchestrator.execute, True, "prompt context providers tools hooks **kwargs"),
    (DisplaySystem.show_message, False, "message level source='hook'"),
    (ApprovalSystem.request_approval, True, "prompt options timeout default"),
]


@pytest.mark.parametrize(("method", "is_async", "parameters"), CALLS)
def test_a_method_takes_what_published_callers_pass(method: Any, is_async: bool, parameters: str) -> None:
    bare = [each.replace(annotation=each.empty) for each in inspect.signature(method).parameters.values()]
    assert " ".join(map(str, bare[1:])) == parameters
    assert inspect.iscoroutinefunction(method) is is_async


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
