"""Ordinary use of a mounted subject, by type: what hygiene, sharing and cancellation are examined on.

An operation is a list of operations; each is a name and an async function of the mounted that calls the subject once and
returns something comparable. Above stand the checks; below stand the mounted and the samples.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from amplifier.conformance.inputs.hook_payloads import ordinary_payload, reaching_payloads
from amplifier.conformance.inputs.sample_calls import sample_inputs
from amplifier.conformance.target.source_literals import choices_in, inputs_in, texts_in, triggers_in
from amplifier.contracts import tool_schema
from amplifier.errors import ContractError
from amplifier.events import ALL_EVENTS
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    HookResult,
    Message,
    StreamChunk,
    ToolCallBlock,
    ToolSpec,
    to_dict,
)

from .mounted_module import CANARY, MountedModule
from .resolver_sources import Question, locate, questions_about, resolver_of
from .resource_snapshot import files_below
from .scripted_turns import ScriptedSession

Run = Callable[[MountedModule], Awaitable[Any]]


@attrs.frozen
class Operation:
    """One operation of the subject.

    Attributes:
        name: What it does, for reports.
        given: Its input, as JSON values.
        run: Calls the subject; raises what the subject raises.
        is_last: Whether it ends the session's work, so that nothing ordinary comes after it.
    """

    name: str
    given: Any
    run: Run
    is_last: bool = False


def typical_operations(mounted: MountedModule) -> list[Operation]:
    """Ordinary use of the subject on this mounted; none if mount declined."""
    return _BY_TYPE[mounted.loaded.module_type](mounted)


# ── tools ──

_MOST_CALLS = 10
"""Of all the tools of a module together: each of them is cancelled at each of its suspensions, several times."""


def _tool_exercises(mounted: MountedModule) -> list[Operation]:
    found = []
    subject = mounted.loaded.subject
    words, choices = inputs_in(subject), choices_in(subject)
    most = max(2, _MOST_CALLS // max(len(mounted.instances), 1))
    for name, tool in mounted.instances.items():
        for sample in sample_inputs(schema_of(tool), CANARY, words=words, choices=choices)[:most]:
            found.append(
                Operation(f"execute of the tool {name!r}", {"tool": name, "input": sample}, _executing(name, sample))
            )
    return found


def schema_of(tool: Any) -> dict[str, Any] | None:
    """A tool's schema; None when it gives none, or a bad one."""
    try:
        return tool_schema(tool)
    except ContractError:
        return None


def _executing(name: str, sample: dict[str, Any]) -> Run:
    async def execute(mounted: MountedModule) -> Any:
        result = await mounted.instances[name].execute(copy.deepcopy(sample))
        return [getattr(result, "success", None), getattr(result, "output", None)]

    return execute


# ── providers ──


def plain_request() -> ChatRequest:
    """A short conversation with a tool on offer."""
    return ChatRequest(
        messages=[Message(role="user", content="Say something.")],
        tools=[ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})],
    )


def _provider_exercises(mounted: MountedModule) -> list[Operation]:
    async def complete(mounted: MountedModule) -> Any:
        return _told(await mounted.instance.complete(plain_request()))

    async def list_models(mounted: MountedModule) -> Any:
        return len(await mounted.instance.list_models())

    async def get_info(mounted: MountedModule) -> Any:
        return repr(mounted.instance.get_info())

    async def stream(mounted: MountedModule) -> Any:
        manager = mounted.instance.stream(plain_request())
        if not hasattr(type(manager), "__aenter__"):
            return None  # another kind of stream than the contract's
        async with manager as chunks:
            return [_told(chunk.response) async for chunk in chunks if isinstance(chunk, StreamChunk)][-1:]

    if mounted.instance is None:
        return []
    request = to_dict(plain_request())
    found = [Operation("complete", request, complete), Operation("list_models", None, list_models)]
    found.append(Operation("get_info", None, get_info))
    return [*found, Operation("stream", request, stream)] if hasattr(mounted.instance, "stream") else found


def _told(response: Any) -> Any:
    """What a response says; ids of calls only have to be new, so they are left out."""
    if not isinstance(response, ChatResponse):
        return repr(type(response))
    blocks = copy.deepcopy(response.content)
    for number, block in enumerate(blocks):
        if isinstance(block, ToolCallBlock):
            block.id = f"call {number}"
    return to_dict(ChatResponse(content=blocks))["content"]


# ── contexts ──


def _context_exercises(mounted: MountedModule) -> list[Operation]:
    async def add_and_read(mounted: MountedModule) -> Any:
        await mounted.instance.add_message({"role": "user", "content": "first"})
        await mounted.instance.add_message({"role": "assistant", "content": "second"})
        return [await mounted.instance.get_messages(), await mounted.instance.get_messages_for_request()]

    async def replace_and_compact(mounted: MountedModule) -> Any:
        await mounted.instance.set_messages(
            [{"role": "user", "content": "the old man and his dog " * 9} for _ in range(40)]
        )
        return len(await mounted.instance.get_messages_for_request(token_budget=400))

    async def clear(mounted: MountedModule) -> Any:
        await mounted.instance.clear()
        return await mounted.instance.get_messages()

    if mounted.instance is None:
        return []
    return [
        Operation("add_message and get_messages", None, add_and_read),
        Operation("set_messages and get_messages_for_request", None, replace_and_compact),
        Operation("clear", None, clear),
    ]


# ── hooks ──


_USUAL_EVENTS = (
    "tool:pre",
    "tool:post",
    "prompt:submit",
    "provider:request",
    "provider:response",
    "session:start",
    "execution:end",
    "session:end",
)
_MOST_EVENTS = 12
_ENDING = ("session:end", "cancel:completed")


def _hook_exercises(mounted: MountedModule) -> list[Operation]:
    subject = mounted.loaded.subject
    words, choices = inputs_in(subject), choices_in(subject)
    found: list[tuple[int, Operation]] = []
    for registration, event in _handled(mounted):
        name = f"the handler {registration.name!r} on {event}"
        payloads = list(itertools.islice(reaching_payloads(event, words, choices, triggers_in(subject)), 0, 9))
        for rank, payload in enumerate([ordinary_payload(event), *payloads]):
            given = {"event": event, "data": payload}
            handle = _handling(registration, event, payload)
            found.append((rank, Operation(name, given, handle, event in _ENDING)))
    # Every handler with its plain payload first, then what the words of its source suggest; what ends a session, last.
    chosen = [operation for _, operation in sorted(found, key=lambda each: each[0])][:_MOST_EVENTS]
    return sorted(chosen, key=lambda operation: operation.is_last)


def _handled(mounted: MountedModule) -> list[tuple[Any, str]]:
    """Every handler with an event it is registered for, the telling events first."""
    named = [event for event in ALL_EVENTS if event in set(texts_in(mounted.loaded.subject))]
    telling = list(dict.fromkeys([*named, *_USUAL_EVENTS]))
    found = []
    for registration in mounted.registrations:
        events = telling if registration.event == "*" else [registration.event]
        found += [(registration, event) for event in events]
    return sorted(found, key=lambda each: telling.index(each[1]) if each[1] in telling else len(telling))


def _handling(registration: Any, event: str, payload: dict[str, Any]) -> Run:
    async def handle(mounted: MountedModule) -> Any:
        answer = registration.handler(event, {**copy.deepcopy(payload), "session_id": mounted.session.session_id})
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, HookResult):
            return repr(type(answer))
        return {key: getattr(answer, key) for key in ("action", "reason", "context_injection", "user_message", "data")}

    return handle


# ── orchestrators ──


TURN: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Look and tell.",
            "answers": [{"blocks": [{"call": "alpha", "steps": 2}, {"call": "beta"}]}, {"blocks": [{"say": "Seen. "}]}],
        }
    ]
}
"""An ordinary turn: two tools, and then an answer."""


def _orchestrator_exercises(mounted: MountedModule) -> list[Operation]:
    async def turn(mounted: MountedModule) -> Any:
        session = ScriptedSession(mounted, TURN)
        try:
            return await session.execute_unguarded()
        finally:
            session.detach()

    return [] if mounted.instance is None else [Operation("a turn with two tools", None, turn)]


# ── resolvers ──


def _resolver_exercises(mounted: MountedModule) -> list[Operation]:
    resolver = resolver_of(mounted)
    if resolver is None:
        return []
    asked = questions_about(mounted.loaded.subject)
    return [
        Operation(
            f"{name} of {question}", {"module_id": question.module_id, "hint": question.hint}, _asking(name, question)
        )
        for name in ("async_resolve", "resolve")
        if callable(getattr(resolver, name, None))
        for question in asked
    ]


def _asking(name: str, question: Question) -> Run:
    async def find(mounted: MountedModule) -> Any:
        try:
            found = await locate(getattr(resolver_of(mounted), name), question, mounted.directory)
        except ModuleNotFoundError:
            return None  # an answer like another
        held = sorted(files_below(found)) if isinstance(found, Path) and found.is_dir() else []
        return {"found": str(found), "files": [each for each in held if "__pycache__" not in each]}

    return find


_BY_TYPE: dict[str, Callable[[MountedModule], list[Operation]]] = {
    "tool": _tool_exercises,
    "provider": _provider_exercises,
    "context": _context_exercises,
    "hook": _hook_exercises,
    "orchestrator": _orchestrator_exercises,
    "resolver": _resolver_exercises,
}
