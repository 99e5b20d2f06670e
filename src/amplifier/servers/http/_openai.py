"""The chat completions of the OpenAI API, and code shared with its Responses API."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._internal.json import JSON, SchemaRefused, build_validator
from amplifier._internal.reading import (
    Kind,
    any_text,
    anything,
    choice,
    flag,
    list_each,
    mapping,
    object_with,
    option,
    optional,
    record,
    whole_number,
)
from amplifier._internal.reading import number as number_kind
from amplifier.errors import ContentFilterError, MissingExtraError, PlanError, ResultError
from amplifier.models import AnswerReset, ThinkingDelta, ToolCall, TurnEvent
from amplifier.models.answers import answer_format
from amplifier.models.prompts import Prompt
from amplifier.models.turns import TurnRecord
from amplifier.shared_sessions import ClientLeft, ClientTool, ClientTools, with_results

from ._agents import Agents, Ask, Flush
from ._event_stream import EventStream, LongResponse, event
from ._history import read_messages, split_conversation, split_results
from .requests import Problem, problem_of, read_body, read_json

P = TypeVar("P", bound="Parameters")

Finish: TypeAlias = Literal["stop", "length", "content_filter", "tool_calls"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_TOOLS: Final = 128
_MAX_STOPS: Final = 4

# ── parameters ──
#
# Every request brings the whole conversation, and the agent's tools run within the request. A
# parameter takes effect or is refused. If the agent's models don't receive a parameter, it is an
# error, unless its value has no effect.


def unsupported(*neutral: object) -> Kind:
    """Return the kind of a parameter that is refused unless its value has no effect."""
    shown = " or ".join(map(json.dumps, [None, *neutral]))
    return Kind(
        f"{shown}, because the agent's models do not get it",
        lambda value: value is None or value in neutral,
    )


_name = Kind(
    "up to 64 letters, digits, _ and -",
    lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
)


def _checked_schema(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    try:
        build_validator(dict(schema))
    except SchemaRefused as error:
        raise PlanError([("$", f"is no JSON Schema that can be used: {error}")]) from None
    except MissingExtraError:  # the loop warns about it
        pass
    return dict(schema)


@attrs.frozen(kw_only=True)
class _Function:
    name: str = option(_name)
    description: str | None = option(optional(any_text), None)
    parameters: dict[str, JSON] | None = option(
        optional(attrs.evolve(mapping, convert=_checked_schema)), None
    )
    # Calls are checked against the schema either way.
    strict: bool | None = option(optional(flag), None)


_function = Kind(
    "'function', because the agent has its own tools for everything else", "function".__eq__
)


@attrs.frozen(kw_only=True)
class _ChatTool:
    type: str = option(_function)
    function: _Function = option(record(_Function))


@attrs.frozen(kw_only=True)
class _ResponsesTool(_Function):
    type: str = option(_function)


def _tool(tool: Mapping[str, JSON]) -> _Function:
    if "function" not in tool:
        return record(_ResponsesTool).read(tool)  # type: ignore[no-any-return]
    chat: _ChatTool = record(_ChatTool).read(tool)
    return chat.function


def _tools(kind: Kind, value: object) -> tuple[ClientTool, ...]:
    tools: dict[str, ClientTool] = {}
    for index, tool in enumerate(kind.convert(value)):
        if tool.name in tools:
            raise PlanError([(f"$[{index}]", f"there are two tools named {tool.name!r}")])
        schema = tool.parameters or {"type": "object", "properties": {}}
        tools[tool.name] = ClientTool(
            name=tool.name, description=tool.description or "", input_schema=schema
        )
    return tuple(tools.values())


def _tools_kind(tool: Kind) -> Kind:
    expected = f"a list of at most {_MAX_TOOLS} tools"
    read = partial(_tools, list_each("tools", tool))
    return optional(
        Kind(expected, lambda value: isinstance(value, list) and len(value) <= _MAX_TOOLS, read)
    )


frontend_tools: Final = _tools_kind(record(_Function, is_open=True))
"""The tools of a client of AG-UI."""


def _stops(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _is_stop(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return (
        isinstance(texts, list)
        and 0 < len(texts) <= _MAX_STOPS
        and all(isinstance(t, str) and t for t in texts)
    )


_tool_choice = Kind(
    "auto, none, required, or an object that names a function of tools",
    lambda value: (
        value in ("auto", "none", "required")
        if isinstance(value, str)
        else _chosen(value) is not None
    ),
)


def _chosen(value: object) -> str | None:
    """Return the function that a tool choice names, in the spelling of either API."""
    if not isinstance(value, Mapping) or value.get("type") != "function":
        return None
    name = value.get("name") or (
        value["function"].get("name") if isinstance(value.get("function"), Mapping) else None
    )
    return name if isinstance(name, str) and name else None


@attrs.frozen(kw_only=True)
class Parameters:
    """The parameters that both APIs share. Each API adds others, and unknown names are refused."""

    model: str | None = option(optional(any_text), None)
    stream: bool | None = option(optional(flag), None)
    temperature: float | None = option(optional(number_kind(0, 2)), None)
    top_p: float | None = option(optional(number_kind(0, 1)), None)
    tools: tuple[ClientTool, ...] | None = option(
        _tools_kind(attrs.evolve(mapping, convert=_tool)), None
    )
    tool_choice: Any = option(optional(_tool_choice), None)
    parallel_tool_calls: bool | None = option(optional(flag), None)
    user: str | None = option(optional(any_text), None)
    metadata: dict[str, JSON] | None = option(optional(mapping), None)
    service_tier: Any = option(unsupported("auto", "default"), None)
    top_logprobs: Any = option(unsupported(0), None)
    prompt_cache_key: Any = option(unsupported(), None)
    prompt_cache_retention: Any = option(unsupported(), None)
    safety_identifier: Any = option(unsupported(), None)

    def settings(self) -> dict[str, JSON]:
        """Return the settings for every request to a model. None stands for no setting."""
        about = {**(self.metadata or {}), **({} if self.user is None else {"user_id": self.user})}
        return {"temperature": self.temperature, "top_p": self.top_p, "metadata": about or None}

    def turn_options(self) -> dict[str, Any]:
        """Return the settings of an `Ask` and the client's tools.

        A tool choice applies to the client's tools. The agent's own tools are always available.
        """
        tools, wanted = self.tools or (), self.tool_choice
        name = None if isinstance(wanted, str) else _chosen(wanted)
        if (wanted == "required" and not tools) or (
            name is not None and name not in [tool.name for tool in tools]
        ):
            message = f"tool_choice: expected one of tools, got {name or wanted!r:.80}"
            raise Problem(400, message, code="invalid_request", param="tool_choice")
        client_tools = ClientTools(
            () if wanted == "none" else tools, in_parallel=self.parallel_tool_calls is not False
        )
        if name is None and wanted == "required" and len(tools) == 1:
            name = tools[0].name
        choice = "required" if name is None else {"type": "function", "function": {"name": name}}
        forced = {"tool_choice": choice} if name is not None or wanted == "required" else {}
        settings = {name: value for name, value in self.settings().items() if value is not None}
        return {"tools": client_tools, "settings": {**settings, **forced}}


stop_kind: Final = optional(Kind(f"a text, or at most {_MAX_STOPS} texts", _is_stop, _stops))
limit_kind: Final = optional(whole_number(1))
effort_kind: Final = optional(choice("none", "minimal", "low", "medium", "high", "xhigh", "max"))


def read_parameters(cls: type[P], body: dict[str, JSON], agent: str) -> P:
    """Read the body of a request."""
    parameters = read_body(cls, body)
    if parameters.model not in (None, agent):
        message = f"model: {parameters.model!r:.80} is not served here; expected {agent!r}"
        raise Problem(404, message, code="model_not_found", param="model")
    return parameters


# ── the form of the answer ──


@attrs.frozen(kw_only=True)
class _Schema:
    name: str = option(_name)
    schema: dict[str, JSON] = option(mapping)
    description: str | None = option(optional(any_text), None)
    # An answer has to match the schema either way.
    strict: bool | None = option(optional(flag), None)


def _named_schema(value: Mapping[str, JSON]) -> dict[str, JSON]:
    declared: _Schema = record(_Schema).read(value)
    about = {"description": declared.description} if declared.description else {}
    schema = {"title": declared.name, **about, **declared.schema}
    try:
        answer_format(schema)
    except TypeError as error:
        raise PlanError([("$.schema", str(error))]) from None
    return schema


def _read_format(value: Mapping[str, JSON]) -> dict[str, JSON] | None:
    """Read the JSON Schema of an answer. Return None for text.

    The value is the ``response_format`` of one API or the ``text.format`` of the other.
    """
    kind, rest = value.get("type"), {name: value[name] for name in value if name != "type"}
    match kind:
        case "text":
            return None
        case "json_object":
            return {"type": "object", "title": "answer"}
        case "json_schema" if "json_schema" in rest:
            schema: dict[str, JSON] = _chat_format.convert(rest)["json_schema"]
            return schema
        case "json_schema":
            return _named_schema(rest)
    raise PlanError([("$.type", f"expected text, json_object or json_schema, got {kind!r:.80}")])


_chat_format = object_with({"json_schema": attrs.evolve(record(_Schema), convert=_named_schema)})
format_kind: Final = optional(Kind("an object with a type", mapping.accepts, _read_format))


# ── a turn ──


def known_history(
    messages: list[dict[str, JSON]], where: str, agents: Agents
) -> tuple[list[dict[str, JSON]], Prompt | None]:
    """Return the history of a request, and its prompt.

    The prompt is None if the turn continues with results from the client. The steps of the agent's
    own tools in such a turn aren't in the request, but the server has kept them.
    """
    history, prompt = split_conversation(messages, where)
    if prompt is None:
        before, results = split_results(messages)
        kept = agents.kept.find(agents.kept.name_of([before, sorted(results)]))
        history = history if kept is None else with_results(kept, results)
    return history, prompt


def keep_for_results(
    agents: Agents,
    sent: list[dict[str, JSON]],
    calls: list[ToolCall],
    messages: list[dict[str, JSON]],
) -> None:
    """Keep a conversation for the request that will bring the results of these calls.

    That request is recognized by the messages that were sent.
    """
    agents.kept.keep(agents.kept.name_of([sent, sorted(call.id for call in calls)]), messages)


def usage(record: TurnRecord, read: str = "input", written: str = "output") -> dict[str, JSON]:
    """Return the tokens of a turn. The two APIs have different names for input and output."""
    return {
        f"{read}_tokens": record.input_tokens,
        f"{read}_tokens_details": {
            "cached_tokens": record.cache_read_tokens or 0,
            "cache_write_tokens": record.cache_write_tokens or 0,
        },
        f"{written}_tokens": record.output_tokens,
        f"{written}_tokens_details": {"reasoning_tokens": record.reasoning_tokens or 0},
        "total_tokens": record.input_tokens + record.output_tokens,
    }


def arguments_of(call: ToolCall) -> str:
    """Return the arguments of a call as JSON."""
    return orjson.dumps(call.arguments, default=str).decode()


@attrs.frozen(kw_only=True)
class Outcome:
    """The end of a request's turn.

    Attributes:
        text: The answer, or the text before the calls to the client's tools.
        finish: The reason for the end.
        calls: The calls to the client's tools.
        record: A summary of the events of the turn.
        refusal: The text that a service returned instead of an answer, or None.
    """

    text: str
    finish: Finish
    calls: list[ToolCall]
    record: TurnRecord
    refusal: str | None = None


Report: TypeAlias = Callable[[Literal["text", "thinking", "reset"], str], Awaitable[None]]


async def watch(agents: Agents, ask: Ask, report: Report, flush: Flush | None = None) -> Outcome:
    """Run a turn and report the pieces of its answer.

    An answer that has to match a schema comes in one piece.

    Args:
        agents: Runs the turn.
        ask: The turn.
        report: Receives each piece.
        flush: Called when all pieces that are ready have been reported.
    """
    turn_record = TurnRecord()

    async def show(turn_event: TurnEvent, text: str) -> None:
        if isinstance(turn_event, ThinkingDelta):
            await report("thinking", turn_event.text)
        elif isinstance(turn_event, AnswerReset) and ask.schema is None:
            await report("reset", text)
        elif text and ask.schema is None:
            await report("text", text)

    ended = await agents.run_once(ask, turn_record, show, flush=flush)
    finish = turn_record.finish
    if ask.tools.is_waiting:
        calls = ask.tools.calls_in(ask.messages)
        return Outcome(
            text=ended.result or "", finish="tool_calls", calls=calls, record=turn_record
        )
    match ended.error:
        case None:
            text = ended.result or ""
        case ContentFilterError():
            refusal = str(ended.error)
            return Outcome(
                text="", finish="content_filter", calls=[], record=turn_record, refusal=refusal
            )
        case ResultError() if finish != "stop":
            # The answer doesn't match the schema because it was interrupted.
            text = ended.error.answer
        case _:
            raise ended.error
    if rest := text if ask.schema is not None else turn_record.rest(text):
        await report("text", rest)
    return Outcome(text=text, finish=finish, calls=[], record=turn_record)


# ── chat completions ──


def openai_routes(agents: Agents) -> list[Route]:
    """Return the routes ``/v1/models`` and ``/v1/chat/completions``."""
    entry = {
        "id": agents.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "amplifier",
    }

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [entry]})

    async def model(request: Request) -> Response:
        read_parameters(Parameters, {"model": request.path_params["name"]}, agents.name)
        return JSONResponse(entry)

    async def completions(request: Request) -> Response:
        parameters = read_parameters(_Body, await read_json(request, agents.limits), agents.name)
        sent = read_messages(parameters.messages)
        history, prompt = known_history(sent, "messages", agents)
        ask = Ask(
            history=history,
            prompt=prompt,
            schema=parameters.response_format,
            **parameters.turn_options(),
        )

        async def work(stream: EventStream) -> Response | None:
            return await _Completion(parameters, sent, ask, agents, stream).run()

        return LongResponse(work, agents.limits.send_seconds)

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
    ]


@attrs.frozen(kw_only=True)
class _Body(Parameters):
    messages: Any = option(anything, None)
    n: int | None = option(optional(Kind("1", lambda value: value == 1)), None)
    stream_options: Any = option(
        optional(
            object_with(
                {"include_usage": optional(flag), "include_obfuscation": unsupported(False)}
            )
        ),
        None,
    )
    max_tokens: int | None = option(limit_kind, None)
    max_completion_tokens: int | None = option(limit_kind, None)
    stop: list[str] | None = option(stop_kind, None)
    reasoning_effort: str | None = option(effort_kind, None)
    response_format: dict[str, JSON] | None = option(format_kind, None)
    store: Any = option(unsupported(False), None)
    seed: Any = option(unsupported(), None)
    frequency_penalty: Any = option(unsupported(0), None)
    presence_penalty: Any = option(unsupported(0), None)
    logit_bias: Any = option(unsupported({}), None)
    logprobs: Any = option(unsupported(False), None)
    modalities: Any = option(unsupported(["text"]), None)
    verbosity: Any = option(unsupported("medium"), None)
    audio: Any = option(unsupported(), None)
    prediction: Any = option(unsupported(), None)
    web_search_options: Any = option(unsupported(), None)
    functions: Any = option(Kind("tools in its place", lambda value: not value), None)
    function_call: Any = option(
        Kind("tool_choice in its place", lambda value: value in (None, "auto", "none")), None
    )

    def settings(self) -> dict[str, JSON]:
        limit = self.max_completion_tokens or self.max_tokens
        more = {
            "max_output_tokens": limit,
            "stop": self.stop,
            "reasoning_effort": self.reasoning_effort,
        }
        return {**super().settings(), **more}


class _Completion:
    """One completion, streamed or whole. Both consist of the same pieces."""

    def __init__(
        self,
        parameters: _Body,
        sent: list[dict[str, JSON]],
        ask: Ask,
        agents: Agents,
        stream: EventStream,
    ) -> None:
        self._is_streamed = parameters.stream is True
        self._with_usage = bool(
            parameters.stream_options and parameters.stream_options.get("include_usage")
        )
        self._sent = sent
        self._ask = ask
        self._agents = agents
        self._stream = stream
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": agents.name,
        }
        self._thoughts: list[str] = []
        self._role: dict[str, str] = {"role": "assistant"}

    async def run(self) -> Response | None:
        try:
            outcome = await watch(self._agents, self._ask, self._report, self._stream.write)
        except ClientLeft:
            raise
        except Exception as error:  # third-party code
            if not self._stream.has_begun:
                raise
            # The status line has already been sent.
            await self._stream.write(event(problem_of(error).body()))
            return None
        if outcome.calls:
            keep_for_results(self._agents, self._sent, outcome.calls, self._ask.messages)
        if not self._is_streamed:
            return JSONResponse(self._whole(outcome))
        calls = [{"index": index, **_call(call)} for index, call in enumerate(outcome.calls)]
        if calls or outcome.refusal is not None:
            more = (
                {"refusal": outcome.refusal}
                if outcome.refusal is not None
                else {"tool_calls": calls}
            )
            self._delta(more)
        self._delta({}, finish_reason=outcome.finish)
        if self._with_usage:
            self._chunk([], usage=usage(outcome.record, "prompt", "completion"))
        self._stream.hold(event("[DONE]"))
        return None

    async def _report(self, kind: str, text: str) -> None:
        if not self._is_streamed:
            if kind == "reset":
                self._thoughts.clear()
            elif kind == "thinking":
                self._thoughts.append(text)
        elif text:
            # OpenAI has no name for reasoning. Chat UIs that show it use this one.
            self._delta({"reasoning_content" if kind == "thinking" else "content": text})

    def _delta(self, delta: dict[str, JSON], finish_reason: str | None = None) -> None:
        role, self._role = self._role, {}
        self._chunk([{"index": 0, "delta": {**role, **delta}, "finish_reason": finish_reason}])

    def _chunk(self, choices: list[dict[str, JSON]], **more: Any) -> None:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        self._stream.hold(event(chunk))

    def _whole(self, outcome: Outcome) -> dict[str, JSON]:
        content = outcome.text or (None if outcome.calls or outcome.refusal is not None else "")
        message: dict[str, JSON] = {
            "role": "assistant",
            "content": content,
            "refusal": outcome.refusal,
        }
        if outcome.calls:
            message["tool_calls"] = [_call(call) for call in outcome.calls]
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish}
        used = usage(outcome.record, "prompt", "completion")
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": used}


def _call(call: ToolCall) -> dict[str, JSON]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_of(call)},
    }
