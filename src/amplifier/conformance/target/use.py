"""Return the typical operations of a mounted module, and find a configuration that they work with.

Hygiene, isolation and cancellation are checked on the typical operations.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, resolved
from amplifier.conformance.inputs.payloads import ordinary_payload, reaching_payloads
from amplifier.conformance.inputs.server_process import SERVICE, is_served
from amplifier.conformance.inputs.values import (
    distinct,
    is_harmless,
    kinds_of,
    properties_of,
    sample_inputs,
    with_texts,
)
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.locate import LoadedTarget
from amplifier.conformance.target.mounted import CANARY, CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.process import files_below
from amplifier.conformance.target.resolver_samples import (
    Question,
    locate,
    questions_about,
    resolver_of,
    settings_for,
)
from amplifier.conformance.target.source import (
    choices_in,
    environment_in,
    inputs_in,
    separators_in,
    settings_in,
    texts_in,
)
from amplifier.conformance.target.turn_session import ScriptedSession
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


@attrs.frozen
class Operation:
    """One call of the module.

    Attributes:
        name: A phrase for reports.
        given: The input, as JSON values.
        run: Calls the module, lets its exceptions through and returns something comparable.
        is_last: True if it ends the session's work, so that no other operation comes after it.
    """

    name: str
    given: Any
    run: Callable[[MountedModule], Coroutine[Any, Any, Any]]
    is_last: bool = False


def typical_operations(mounted: MountedModule) -> list[Operation]:
    """Return the typical operations of the module. Empty if mount declined."""
    return _BY_TYPE[mounted.loaded.module_type](mounted)


async def run_typical_operations(mounted: MountedModule) -> None:
    """Run every typical operation, however it ends."""
    for operation in typical_operations(mounted):
        await mounted.call(operation.run, mounted)


# ── tools ──

# Each call is cancelled several times at each of its suspensions. The limits are for all tools of a
# module together, and the second is for a module that starts processes.
_MAX_CALLS = 10
_MAX_COSTLY_CALLS = 2
_samples: dict[str, list[dict[str, Any]]] = {}
"""Cache of the sample inputs of each tool, which every mount needs."""


def _tool_exercises(mounted: MountedModule) -> list[Operation]:
    operations = []
    target = mounted.loaded.target
    keys, choices = inputs_in(target), choices_in(target)
    limit = _MAX_COSTLY_CALLS if mounted.loaded.starts_processes else _MAX_CALLS
    limit = max(2, limit // max(len(mounted.instances), 1))
    for name, tool in mounted.instances.items():
        schema = schema_of(tool)
        key = fingerprint([name, schema])
        if key not in _samples:
            _samples[key] = sample_inputs(schema, CANARY, source_keys=keys, choices=choices)
        chosen = mounted.loaded.chosen_inputs.get(name, ())
        for sample in distinct([*_samples[key][:limit], *chosen]):
            given = {"tool": name, "input": sample}
            operations.append(
                Operation(f"execute of the tool {name!r}", given, partial(execute, name, sample))
            )
    return operations


_MAX_PATTERN_TEXTS = 8


def sought_texts(loaded: LoadedTarget) -> list[str]:
    """Return texts that the source of a tool looks for in others, and texts with its separators."""
    patterns = [text for text in loaded.triggers if not is_harmless(text)]
    parted = [f"one{mark}two{mark}{mark}three" for mark in separators_in(loaded.target)]
    return [*patterns[:_MAX_PATTERN_TEXTS], *parted]


def schema_of(tool: Any) -> dict[str, Any] | None:
    """Return the schema of a tool, or None if it has none or an invalid one."""
    try:
        return tool_schema(tool)
    except ContractError:
        return None


async def execute(name: str, sample: dict[str, Any], mounted: MountedModule) -> Any:
    """Call a tool and return its success and its output."""
    result = await mounted.instances[name].execute(copy.deepcopy(sample))
    return [getattr(result, "success", None), getattr(result, "output", None)]


# ── providers ──


def plain_request() -> ChatRequest:
    """Return a request with one message and one tool."""
    return ChatRequest(
        messages=[Message(role="user", content="Say something.")],
        tools=[
            ToolSpec(
                name="look", description="Looks.", parameters={"type": "object", "properties": {}}
            )
        ],
    )


def _provider_exercises(mounted: MountedModule) -> list[Operation]:
    async def complete(mounted: MountedModule) -> Any:
        response = await mounted.instance.complete(plain_request())
        mounted.note_success(Outcome(kind="returned", value=response))
        return _comparable(response, mounted)

    async def list_models(mounted: MountedModule) -> Any:
        return len(await mounted.instance.list_models())

    async def get_info(mounted: MountedModule) -> Any:
        return repr(mounted.instance.get_info())

    async def stream(mounted: MountedModule) -> Any:
        manager = mounted.instance.stream(plain_request())
        # This may be a different kind of stream than the contract's.
        if not hasattr(type(manager), "__aenter__"):
            return None
        async with manager as chunks:
            return [
                _comparable(chunk.response, mounted)
                async for chunk in chunks
                if isinstance(chunk, StreamChunk)
            ][-1:]

    if mounted.instance is None:
        return []
    request = to_dict(plain_request())
    operations = [
        Operation("complete", request, complete),
        Operation("list_models", None, list_models),
        Operation("get_info", None, get_info),
    ]
    return (
        [*operations, Operation("stream", request, stream)]
        if hasattr(mounted.instance, "stream")
        else operations
    )


def _comparable(response: Any, mounted: MountedModule) -> Any:
    """Return the content and usage of a response, with numbers for the ids of its calls.

    The ids only have to be new, which is checked elsewhere.
    """
    if not isinstance(response, ChatResponse):
        return repr(type(response))
    blocks = copy.deepcopy(response.content)
    for number, block in enumerate(blocks):
        if isinstance(block, ToolCallBlock):
            mounted.call_ids.append(block.id)
            block.id = f"call {number}"
    return [*to_dict(ChatResponse(content=blocks))["content"], {"usage": response.usage}]


# ── contexts ──


def _context_exercises(mounted: MountedModule) -> list[Operation]:
    async def add_and_read(mounted: MountedModule) -> Any:
        await mounted.instance.add_message({"role": "user", "content": "first"})
        await mounted.instance.add_message({"role": "assistant", "content": "second"})
        return [await mounted.instance.get_messages(), *await _views(mounted)]

    async def replace_and_compact(mounted: MountedModule) -> Any:
        await mounted.instance.set_messages(_long("the old man"))
        return await _views(mounted)

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


def _long(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{text} and his dog " * 9} for _ in range(40)]


async def _views(mounted: MountedModule) -> list[Any]:
    return [
        await mounted.instance.get_messages_for_request(token_budget=budget)
        for budget in (400, 2_000, None)
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
_MAX_EVENTS = 12
_LAST_EVENTS = ("session:end", "cancel:completed")


def _hook_exercises(mounted: MountedModule) -> list[Operation]:
    target = mounted.loaded.target
    keys, choices = inputs_in(target), choices_in(target)
    ranked: list[tuple[int, Operation]] = []
    for registration, event in _handled(mounted):
        name = f"the handler {registration.name!r} on {event}"
        payloads = list(
            itertools.islice(reaching_payloads(event, keys, choices, mounted.loaded.triggers), 0, 9)
        )
        for rank, payload in enumerate([ordinary_payload(event), *payloads]):
            handle = partial(_handle, registration, event, payload)
            given = {"event": event, "data": payload}
            ranked.append((rank, Operation(name, given, handle, event in _LAST_EVENTS)))
    # Every handler gets its plain payload first, then the payloads from words of its source. Events
    # that end a session come last.
    chosen = [operation for _, operation in sorted(ranked, key=lambda pair: pair[0])][:_MAX_EVENTS]
    return sorted(chosen, key=lambda operation: operation.is_last)


def _handled(mounted: MountedModule) -> list[tuple[Any, str]]:
    """Return each handler with each of its events, the events that its source names first."""
    named = [event for event in ALL_EVENTS if event in set(texts_in(mounted.loaded.target))]
    likely = list(dict.fromkeys([*named, *_USUAL_EVENTS]))
    pairs = []
    for registration in mounted.registrations:
        events = likely if registration.event == "*" else [registration.event]
        pairs += [(registration, event) for event in events]
    return sorted(
        pairs, key=lambda pair: likely.index(pair[1]) if pair[1] in likely else len(likely)
    )


def handling(mounted: MountedModule, event: str, data: dict[str, Any]) -> list[Operation]:
    """Return the call of each handler that is registered for an event."""
    return [
        Operation(
            f"the handler {registration.name!r} on {event}",
            {"event": event, "data": data},
            partial(_handle, registration, event, data),
            event in _LAST_EVENTS,
        )
        for registration in mounted.registrations
        if registration.event in (event, "*")
    ]


async def _handle(
    registration: Any, event: str, payload: dict[str, Any], mounted: MountedModule
) -> Any:
    result = registration.handler(
        event, {**copy.deepcopy(payload), "session_id": mounted.session.session_id}
    )
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, HookResult):
        return repr(type(result))
    return {
        key: getattr(result, key)
        for key in ("action", "reason", "context_injection", "user_message", "data")
    }


# ── orchestrators ──


TURN: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Look and tell.",
            "submit": "inject once",
            "answers": [
                {
                    "blocks": [
                        {"call": "alpha", "steps": 2, "post": "inject"},
                        {"call": "beta", "post": "inject once"},
                    ]
                },
                {"blocks": [{"say": "Seen. "}]},
            ],
        }
    ]
}
"""A turn with two tool calls and a final answer.

After the calls, hooks add to the conversation and to the next request.
"""


_UNSTEADY = re.compile(r"time|date|duration|elapsed|_ms$|_at$|uuid|^id$|_id$")


def _steady(value: Any) -> Any:
    """Return stored messages without times and ids, which differ from turn to turn."""
    if isinstance(value, dict):
        return {
            key: _steady(member) for key, member in value.items() if not _UNSTEADY.search(str(key))
        }
    return [_steady(member) for member in value] if isinstance(value, list) else value


_REFUSED: dict[str, Any] = {
    "turns": [
        {
            "prompt": "Try it.",
            "answers": [
                {"error": "RateLimitError", "times": 1},
                {"blocks": [{"say": "Tried. "}]},
            ],
        }
    ]
}
"""A turn with a provider that refuses once, which an orchestrator may survive."""


def _orchestrator_exercises(mounted: MountedModule) -> list[Operation]:
    if mounted.instance is None:
        return []
    return [
        Operation("a turn with two tools", None, partial(_turn, TURN)),
        Operation("a turn with a provider that refuses once", None, partial(_turn, _REFUSED)),
    ]


async def _turn(case: dict[str, Any], mounted: MountedModule) -> Any:
    session = ScriptedSession(mounted, case)
    try:
        answer = await session.execute_unguarded()
        asked = [entry.data for entry in session.turn.log if entry.kind == "asked"]
        return {
            "answer": answer,
            "stored": _steady(session.context.messages),
            "asked": _steady(asked),
        }
    finally:
        session.detach()


# ── resolvers ──


def _resolver_exercises(mounted: MountedModule) -> list[Operation]:
    resolver = resolver_of(mounted)
    if resolver is None:
        return []
    return [
        Operation(f"{name} of {question}", question.given, partial(_locate, name, question))
        for name in ("async_resolve", "resolve")
        if callable(getattr(resolver, name, None))
        for question in questions_about(mounted.loaded.target)
    ]


async def _locate(name: str, question: Question, mounted: MountedModule) -> Any:
    try:
        path = await locate(getattr(resolver_of(mounted), name), question, mounted.directory)
    except ModuleNotFoundError:
        return None  # a valid answer
    files = sorted(files_below(path)) if isinstance(path, Path) and path.is_dir() else []
    return {"found": str(path), "files": [file for file in files if "__pycache__" not in file]}


_BY_TYPE: dict[str, Callable[[MountedModule], list[Operation]]] = {
    "tool": _tool_exercises,
    "provider": _provider_exercises,
    "context": _context_exercises,
    "hook": _hook_exercises,
    "orchestrator": _orchestrator_exercises,
    "resolver": _resolver_exercises,
}


FOREIGN = "straße – 名前 ✓"
"""A text that some encodings cannot represent."""


def other_operations(
    mounted: MountedModule, text: str = "other text", number: int = 5
) -> list[Operation]:
    """Return the typical operations with another text and number wherever the module takes any.

    For a provider, context or orchestrator, return operations on other messages.
    """
    typical = [operation for operation in typical_operations(mounted) if not operation.is_last]
    kind = mounted.loaded.module_type
    if kind in _WITH_TEXT and mounted.instance is not None:
        return [
            Operation(name, {name: text}, partial(run, text))
            for name, run in _WITH_TEXT[kind].items()
        ]
    operations = []
    for operation in typical if kind in ("tool", "hook") else ():
        given = copy.deepcopy(operation.given)
        if kind == "hook":
            given["data"] = with_texts(given["data"], lambda original: f"{original} {text}")
            registration = operation.run.args[0]  # type: ignore[attr-defined]
            run = partial(_handle, registration, given["event"], given["data"])
        else:
            given["input"] = _other_input(
                given["input"], schema_of(mounted.instances[given["tool"]]), text, number
            )
            run = partial(execute, given["tool"], given["input"])
        if given != operation.given:
            operations.append(Operation(operation.name, given, run))
    return operations


def retyped_operations(mounted: MountedModule) -> list[Operation]:
    """Return the typical operations of a tool with 1 for 1.0 and 1.0 for 1."""
    operations = []
    for operation in typical_operations(mounted) if mounted.loaded.module_type == "tool" else ():
        name, given = operation.given["tool"], _retyped(operation.given["input"])
        if repr(given) != repr(operation.given["input"]):
            run = partial(execute, name, given)
            operations.append(Operation(operation.name, {"tool": name, "input": given}, run))
    return operations


_MAX_EXACT = 2**53
"""Every integer up to this one is exact as a float."""


def _retyped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _retyped(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_retyped(member) for member in value]
    if type(value) is int and abs(value) < _MAX_EXACT:
        return float(value)
    return int(value) if type(value) is float and value.is_integer() else value


def _other_input(
    given: dict[str, Any], schema: dict[str, Any] | None, text: str, number: int
) -> dict[str, Any]:
    """Return an input with another text and number in every place where the schema accepts it."""
    result, accepts = dict(given), acceptor(schema)
    parts = properties_of(resolved(schema, schema)) if schema else {}
    for key, value in given.items():
        part = resolved(parts.get(key, {}), schema)
        changed: Any = value
        if (
            isinstance(value, str)
            and "enum" not in part
            and value != CANARY
            and kinds_of(part) == ["string"]
        ):
            changed = f"{text} {key}"
        elif isinstance(value, int) and not isinstance(value, bool):
            changed = number
        elif isinstance(value, list) and value:
            changed = [number if type(item) is int else item for item in value * (1 + number % 2)]
            changed = [f"{text} {key}" if isinstance(item, str) else item for item in changed]
        if accepts is None or accepts({**result, key: changed}):
            result[key] = changed
    return result


async def _complete_later(text: str, mounted: MountedModule) -> Any:
    request = plain_request()
    request.messages[:0] = [
        Message(role="user", content=text),
        Message(role="assistant", content="Yes."),
    ]
    return _comparable(await mounted.instance.complete(request), mounted)


async def _complete_other(text: str, mounted: MountedModule) -> Any:
    request = plain_request()
    # The message gets another length too.
    again = "And again. " * (sum(map(ord, text)) % 7)
    request.messages[0].content = f"Please use a tool, and repeat: {text}. {again}"
    return _comparable(await mounted.instance.complete(request), mounted)


async def _store(text: str, mounted: MountedModule) -> Any:
    for message in (
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Yes.", "metadata": {"n": 0.1}},
    ):
        await mounted.instance.add_message(message)
    views = [
        await mounted.instance.get_messages(),
        await mounted.instance.get_messages_for_request(),
    ]
    await mounted.instance.set_messages(_long(text))
    return [*views, *await _views(mounted)]


async def _long_turn(text: str, mounted: MountedModule) -> Any:
    calling = {
        "blocks": [{"call": "alpha", "post": "inject"}, {"call": "beta", "pre": "inject once"}]
    }
    answers = [calling, calling, {"blocks": [{"call": "gamma"}]}, {"blocks": [{"say": "Seen. "}]}]
    return await _turn({"turns": [{"prompt": text, "answers": answers}]}, mounted)


_WITH_TEXT: dict[str, dict[str, Callable[[str, MountedModule], Coroutine[Any, Any, Any]]]] = {
    "provider": {
        "complete after other messages": _complete_later,
        "complete of a message": _complete_other,
    },
    "context": {"add_message and get_messages": _store},
    "orchestrator": {"a turn with tools after each of three answers": _long_turn},
}


# ── the configuration ──
#
# A provider without its key declines, and then nothing could be examined. A context that can keep a
# file should be examined while it keeps one. So where the author gives no configuration, candidates
# are made from words of the source. All checks use the first candidate with which the module mounts
# and runs its typical operations. The report names the guessed settings.

SECRET = "conformance-secret-7f3a"
"""A value for keys, which is not valid anywhere."""

_SECRETS = ("api_key", "apikey", "key", "token", "secret", "password", "credential")
_ADDRESSES = ("base_url", "api_base", "endpoint", "url")
_FILES = ("file", "path", "db", "database", "store", "storage", "journal")
_FOLDERS = ("dir", "directory", "folder", "root", "workspace", "path", "store", "storage")


async def find_working_config(ctx: CheckContext) -> LoadedTarget:
    """Return the module with the settings for all checks."""
    loaded = ctx.loaded
    works = await _works(ctx, loaded.config)
    wanted: list[dict[str, Any]] = []
    if loaded.module_type == "context":
        wanted = _placed(loaded)
    elif loaded.module_type == "provider" and (addresses := _addresses(loaded)):
        enough = {**_secrets(loaded), **addresses}
        wanted = [enough, {**enough, **_models(loaded)}]
    elif loaded.module_type == "resolver" and not works:
        wanted = settings_for(settings_in(loaded.target))
    if not works:
        set_environment(loaded)
        secrets = _secrets(loaded)
        wanted = [*wanted, secrets, {**secrets, **_models(loaded)}]
    for candidate in wanted:
        config = {**candidate, **loaded.config}
        if config != loaded.config and await _works(ctx, config):
            return attrs.evolve(loaded, config=config, given=loaded.config if works else config)
    return loaded


async def _works(ctx: CheckContext, config: dict[str, Any]) -> bool:
    """Return True if the module mounts with the settings, and runs its typical operations."""
    module_type = ctx.loaded.module_type
    try:
        async with ctx.fresh().mount(config=config) as mounted:
            # A hook need not register anything.
            if mounted.instance is None and module_type not in ("hook", "resolver"):
                return False
            # Failing calls are left to the checks, unless the settings exist to make them work.
            if module_type not in ("context", "resolver") and not is_served(config):
                return True
            outcomes = [
                await mounted.call(operation.run, mounted)
                for operation in typical_operations(mounted)
            ]
            if module_type == "resolver":
                return any(outcome.value is not None for outcome in outcomes)
            return all(outcome.returned for outcome in outcomes)
    except MountFailed:
        return False


# ── guesses ──


def _placed(loaded: LoadedTarget) -> list[dict[str, Any]]:
    """Return settings with a file or a folder for each key that sounds like one."""
    keys = list(dict.fromkeys([*settings_in(loaded.target), *inputs_in(loaded.target)]))
    files = {key: "{directory}/memory.jsonl" for key in keys if _is_one_of(key, _FILES)}
    folders = {key: "{directory}" for key in keys if _is_one_of(key, _FOLDERS)}
    return [candidate for candidate in ({**folders, **files}, {**files, **folders}) if candidate]


def _secrets(loaded: LoadedTarget) -> dict[str, Any]:
    return {key: SECRET for key in settings_in(loaded.target) if is_secret(key)}


def _models(loaded: LoadedTarget) -> dict[str, Any]:
    return {
        key: "test-model" for key in settings_in(loaded.target) if "model" in key.lower().split("_")
    }


def _addresses(loaded: LoadedTarget) -> dict[str, Any]:
    """Return settings with the kit's LLM server for each address."""
    return {
        key: f"{SERVICE}/auto" for key in settings_in(loaded.target) if _is_one_of(key, _ADDRESSES)
    }


def _is_one_of(key: str, words: tuple[str, ...]) -> bool:
    parts = key.lower().replace("-", "_").split("_")
    return key.lower() in words or any(word in parts for word in words)


def is_secret(key: str) -> bool:
    """Return True if the name of a setting or variable is one for a key."""
    return _is_one_of(key, _SECRETS) and not _is_one_of(
        key, ("max", "min", "limit", "budget", "count")
    )


# ── the environment ──


def set_environment(loaded: LoadedTarget) -> None:
    """Set the environment variables in which the module looks for keys."""
    for name in secret_variables(loaded):
        os.environ.setdefault(name, SECRET)


def secret_variables(loaded: LoadedTarget) -> list[str]:
    """Return the environment variables in which the module looks for keys."""
    return [name for name in environment_in(loaded.target) if is_secret(name)]


@contextmanager
def without_secrets(loaded: LoadedTarget) -> Iterator[None]:
    """Unset the `secret_variables` in the body."""
    saved = {name: os.environ.pop(name) for name in secret_variables(loaded) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)
