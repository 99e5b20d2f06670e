"""Ordinary use of a mounted subject, by type: what hygiene, sharing and cancellation are examined on.

An exercise is a list of operations; each is a name and an async function of the scene that calls the subject once and
returns something comparable. Above stand the checks; below stand the scene and the samples.
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
from amplifier.conformance.inputs.tool_inputs import sample_inputs
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

from .mounted_module import CANARY, Scene
from .resolver_sources import Question, locate, questions_about, resolver_of
from .resource_snapshot import files_below
from .scripted_turns import World

Operation = Callable[[Scene], Awaitable[Any]]


@attrs.frozen
class Exercise:
    """One operation of the subject.

    Attributes:
        name: What it does, for reports.
        given: Its input, as JSON values.
        run: Calls the subject; raises what the subject raises.
        is_last: Whether it ends the session's work, so that nothing ordinary comes after it.
    """

    name: str
    given: Any
    run: Operation
    is_last: bool = False


def exercises(scene: Scene) -> list[Exercise]:
    """Ordinary use of the subject on this scene; none if mount declined."""
    return _BY_TYPE[scene.loaded.module_type](scene)


# ── tools ──

_MOST_CALLS = 10
"""Of all the tools of a module together: each of them is cancelled at each of its suspensions, several times."""


def _tool_exercises(scene: Scene) -> list[Exercise]:
    found = []
    subject = scene.loaded.target
    words, choices = inputs_in(subject), choices_in(subject)
    most = max(2, _MOST_CALLS // max(len(scene.instances), 1))
    for name, tool in scene.instances.items():
        for sample in sample_inputs(schema_of(tool), CANARY, words=words, choices=choices)[:most]:
            found.append(
                Exercise(f"execute of the tool {name!r}", {"tool": name, "input": sample}, _executing(name, sample))
            )
    return found


def schema_of(tool: Any) -> dict[str, Any] | None:
    """A tool's schema; None when it gives none, or a bad one."""
    try:
        return tool_schema(tool)
    except ContractError:
        return None


def _executing(name: str, sample: dict[str, Any]) -> Operation:
    async def execute(scene: Scene) -> Any:
        result = await scene.instances[name].execute(copy.deepcopy(sample))
        return [getattr(result, "success", None), getattr(result, "output", None)]

    return execute


# ── providers ──


def plain_request() -> ChatRequest:
    """A short conversation with a tool on offer."""
    return ChatRequest(
        messages=[Message(role="user", content="Say something.")],
        tools=[ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})],
    )


def _provider_exercises(scene: Scene) -> list[Exercise]:
    async def complete(scene: Scene) -> Any:
        return _told(await scene.instance.complete(plain_request()))

    async def list_models(scene: Scene) -> Any:
        return len(await scene.instance.list_models())

    async def get_info(scene: Scene) -> Any:
        return repr(scene.instance.get_info())

    async def stream(scene: Scene) -> Any:
        manager = scene.instance.stream(plain_request())
        if not hasattr(type(manager), "__aenter__"):
            return None  # another kind of stream than the contract's
        async with manager as chunks:
            return [_told(chunk.response) async for chunk in chunks if isinstance(chunk, StreamChunk)][-1:]

    if scene.instance is None:
        return []
    request = to_dict(plain_request())
    found = [Exercise("complete", request, complete), Exercise("list_models", None, list_models)]
    found.append(Exercise("get_info", None, get_info))
    return [*found, Exercise("stream", request, stream)] if hasattr(scene.instance, "stream") else found


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


def _context_exercises(scene: Scene) -> list[Exercise]:
    async def add_and_read(scene: Scene) -> Any:
        await scene.instance.add_message({"role": "user", "content": "first"})
        await scene.instance.add_message({"role": "assistant", "content": "second"})
        return [await scene.instance.get_messages(), await scene.instance.get_messages_for_request()]

    async def replace_and_compact(scene: Scene) -> Any:
        await scene.instance.set_messages(
            [{"role": "user", "content": "the old man and his dog " * 9} for _ in range(40)]
        )
        return len(await scene.instance.get_messages_for_request(token_budget=400))

    async def clear(scene: Scene) -> Any:
        await scene.instance.clear()
        return await scene.instance.get_messages()

    if scene.instance is None:
        return []
    return [
        Exercise("add_message and get_messages", None, add_and_read),
        Exercise("set_messages and get_messages_for_request", None, replace_and_compact),
        Exercise("clear", None, clear),
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


def _hook_exercises(scene: Scene) -> list[Exercise]:
    subject = scene.loaded.target
    words, choices = inputs_in(subject), choices_in(subject)
    found: list[tuple[int, Exercise]] = []
    for registration, event in _handled(scene):
        name = f"the handler {registration.name!r} on {event}"
        payloads = list(itertools.islice(reaching_payloads(event, words, choices, triggers_in(subject)), 0, 9))
        for rank, payload in enumerate([ordinary_payload(event), *payloads]):
            given = {"event": event, "data": payload}
            handle = _handling(registration, event, payload)
            found.append((rank, Exercise(name, given, handle, event in _ENDING)))
    # Every handler with its plain payload first, then what the words of its source suggest; what ends a session, last.
    chosen = [exercise for _, exercise in sorted(found, key=lambda each: each[0])][:_MOST_EVENTS]
    return sorted(chosen, key=lambda exercise: exercise.is_last)


def _handled(scene: Scene) -> list[tuple[Any, str]]:
    """Every handler with an event it is registered for, the telling events first."""
    named = [event for event in ALL_EVENTS if event in set(texts_in(scene.loaded.target))]
    telling = list(dict.fromkeys([*named, *_USUAL_EVENTS]))
    found = []
    for registration in scene.registrations:
        events = telling if registration.event == "*" else [registration.event]
        found += [(registration, event) for event in events]
    return sorted(found, key=lambda each: telling.index(each[1]) if each[1] in telling else len(telling))


def _handling(registration: Any, event: str, payload: dict[str, Any]) -> Operation:
    async def handle(scene: Scene) -> Any:
        answer = registration.handler(event, {**copy.deepcopy(payload), "session_id": scene.session.session_id})
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


def _orchestrator_exercises(scene: Scene) -> list[Exercise]:
    async def turn(scene: Scene) -> Any:
        world = World(scene, TURN)
        try:
            return await world.run_bare()
        finally:
            world.leave()

    return [] if scene.instance is None else [Exercise("a turn with two tools", None, turn)]


# ── resolvers ──


def _resolver_exercises(scene: Scene) -> list[Exercise]:
    resolver = resolver_of(scene)
    if resolver is None:
        return []
    asked = questions_about(scene.loaded.target)
    return [
        Exercise(
            f"{name} of {question}", {"module_id": question.module_id, "hint": question.hint}, _asking(name, question)
        )
        for name in ("async_resolve", "resolve")
        if callable(getattr(resolver, name, None))
        for question in asked
    ]


def _asking(name: str, question: Question) -> Operation:
    async def find(scene: Scene) -> Any:
        try:
            found = await locate(getattr(resolver_of(scene), name), question, scene.directory)
        except ModuleNotFoundError:
            return None  # an answer like another
        held = sorted(files_below(found)) if isinstance(found, Path) and found.is_dir() else []
        return {"found": str(found), "files": [each for each in held if "__pycache__" not in each]}

    return find


_BY_TYPE: dict[str, Callable[[Scene], list[Exercise]]] = {
    "tool": _tool_exercises,
    "provider": _provider_exercises,
    "context": _context_exercises,
    "hook": _hook_exercises,
    "orchestrator": _orchestrator_exercises,
    "resolver": _resolver_exercises,
}
