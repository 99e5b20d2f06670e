"""Messages that the built-in contexts and loops share between requests: the same requests as with copies, built once.

Each program runs twice: with the context itself, whose stored messages the loop shares, and behind an object that rebuilds every
request from copies. Provider, hooks and application change everything that they get.
"""

from __future__ import annotations

import copy
import sys
from functools import wraps
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import ChatRequest, ChatResponse, HookRegistry, HookResult, Message, TextBlock, ToolCall, ToolResult
from amplifier._json import Copies, copy_json
from amplifier.kernel.hooks import dispatch
from amplifier.models import ContextInjection, ProviderInfo, ToolCallBlock, from_dict, to_dict
from amplifier.models._definition.base import Model
from amplifier.models._definition.shared_list import SharedList
from amplifier.modules._agent_loop import read_options
from amplifier.modules._agent_loop.request_messages import RequestMessages
from amplifier.modules._chat_history import ContextOptions, conversation, count_tokens, shared_form
from amplifier.modules.context_simple import SimpleContext
from amplifier.modules.loop_basic import BasicLoop


class OfThirdParties:
    """A context that builds every request anew from everything that is stored, with no memory of earlier ones."""

    def __init__(self, inner: SimpleContext, options: ContextOptions | None = None) -> None:
        self._inner = inner
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_messages_for_request(self, token_budget: int | None = None, provider: Any = None) -> Any:
        fresh = SimpleContext(self._options)
        await fresh.set_messages(await self._inner.get_messages())
        return await fresh.get_messages_for_request(token_budget, provider)

    async def get_messages(self) -> Any:
        return await self._inner.get_messages()


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, Model):
        for name in [attribute.name for attribute in attrs.fields(type(value)) if attribute.init]:
            member = getattr(value, name)
            if isinstance(member, str):
                setattr(value, name, "spoiled")
            spoil(member)
    elif isinstance(value, dict):
        for member in list(value.values()):
            spoil(member)
        value.clear()
        value["spoiled"] = True
    elif isinstance(value, list):
        for member in list(value):
            spoil(member)
        value[:] = ["spoiled"]


class Provider:
    """Answers from a list, keeps a copy of every request, and changes the request."""

    name = "scripted"

    def __init__(self, window: int, *, spoils: bool = True) -> None:
        self.answers: list[ChatResponse] = []
        self.requests: list[dict[str, Any]] = []
        self._window = window
        self._spoils = spoils

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="scripted", display_name="Scripted", defaults={"context_window": self._window})

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        if self._spoils:
            self.requests.append(to_dict(request))
            assert self.requests[-1] == to_dict(ChatRequest(**self.requests[-1]))
            spoil(request)
        return self.answers.pop(0)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


class Look:
    """A tool with a result of several levels."""

    name = "look"
    description = "Looks."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        spoil(input)
        return ToolResult(output={"found": [{"line": 1}]})


def answer(text: str, calls: int = 0) -> ChatResponse:
    blocks = [ToolCallBlock(id=f"{text}{at}", name="look", input={"path": {"deep": [at]}}) for at in range(calls)]
    made = [ToolCall(id=block.id, name=block.name, arguments=block.input) for block in blocks]
    said = from_dict(TextBlock, {"type": "text", "text": text, "mark": {"x": [1]}})
    return ChatResponse(content=[said, *blocks], tool_calls=made or None)


STRUCTURED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "look", "mark": {"x": [1]}}], "metadata": {"n": {"m": 1}}},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "s", "name": "look", "arguments": {"deep": [1]}}]},
    {"role": "tool", "tool_call_id": "s", "content": [{"type": "new", "parts": [{"x": 1}]}]},
    {"role": "tool", "tool_call_id": "of no call", "content": "an orphan"},
    {"role": "system", "content": "obey"},
    {"role": "user", "content": "1"},
    {"role": "user", "content": "many words " * 40},
]

INJECTIONS = {
    "stored": ContextInjection(content="remember", role="user"),
    "shown once": ContextInjection(content="look out", role="user", ephemeral=True),
    "with the result": ContextInjection(
        content="mind this", role="user", ephemeral=True, append_to_last_tool_result=True
    ),
}


def programs() -> st.SearchStrategy[list[tuple[str, Any]]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("turn"), st.integers(0, 2)),
            st.tuples(st.just("turn"), st.integers(0, 2)),
            st.tuples(st.just("add"), st.sampled_from(STRUCTURED)),
            st.tuples(st.just("set"), st.lists(st.sampled_from(STRUCTURED), max_size=4)),
            st.tuples(st.just("set the same but for a type"), st.none()),
            st.tuples(st.just("clear"), st.none()),
            st.tuples(st.just("spoil what is returned"), st.none()),
            st.tuples(st.just("inject"), st.sampled_from(sorted(INJECTIONS))),
        ),
        max_size=8,
    )


class World:
    """A loop with everything around it, and a record of what everyone got."""

    def __init__(self, *, is_shared: bool, window: int, listens: bool) -> None:
        options = ContextOptions(safety_margin=0, max_tokens=window)
        stored = SimpleContext(options)
        self.context: Any = stored if is_shared else OfThirdParties(stored, options)
        self.provider = Provider(window)
        self.events: list[Any] = []
        self._injections: list[ContextInjection] = []
        self._hooks = HookRegistry()
        self._listens = listens
        self._loop = BasicLoop(read_options("loop-basic", None))
        self._turns = 0

    async def _note(self, event: str, data: dict[str, Any]) -> HookResult:
        self.events.append(copy.deepcopy(data["messages"]))
        assert all(type(message) is dict for message in data["messages"])
        follows_result = data["messages"][-1]["role"] == "tool"
        spoil(data["messages"])
        injected = [item for item in self._injections if follows_result or not item.append_to_last_tool_result]
        self._injections = [item for item in self._injections if item not in injected]
        if injected:
            return HookResult(action="inject_context", context_injections=injected)
        return HookResult()

    async def perform(self, operation: str, argument: Any) -> None:
        match operation:
            case "turn":
                self._turns += 1
                self.provider.answers = [answer(f"{self._turns}a", argument)] if argument else []
                self.provider.answers.append(answer(f"{self._turns}b"))
                undo = self._hooks.register("provider:request", self._note) if self._listens else None
                tools: Any = {"look": Look()}
                await self._loop.execute("go", self.context, {"scripted": self.provider}, tools, self._hooks)  # type: ignore[dict-item]
                if undo is not None:
                    undo()
            case "add":
                given = copy.deepcopy(argument)
                await self.context.add_message(given)
                spoil(given)
            case "set":
                given = copy.deepcopy(argument)
                await self.context.set_messages(given)
                spoil(given)
            case "set the same but for a type":
                kept = await self.context.get_messages()
                for message in kept:
                    message["metadata"] = {"was": bool(message.get("metadata")) + 0}
                await self.context.set_messages(kept)
                await self.perform("turn", 0)
                for message in kept:
                    message["metadata"] = {"was": bool(message["metadata"]["was"])}
                await self.context.set_messages(kept)
            case "clear":
                await self.context.clear()
            case "spoil what is returned":
                spoil(await self.context.get_messages())
                spoil(await self.context.get_messages_for_request())
            case "inject":
                self._injections.append(INJECTIONS[argument])


@given(program=programs(), window=st.sampled_from([60, 300, 10**6]), listens=st.booleans())
async def test_the_provider_gets_the_same_requests_as_with_copies(program, window, listens):
    shared = World(is_shared=True, window=window, listens=listens)
    copied = World(is_shared=False, window=window, listens=listens)
    for operation, argument in [*program, ("turn", 1), ("turn", 0)]:  # what was spoiled shows in the next request
        await shared.perform(operation, argument)
        await copied.perform(operation, argument)
        assert shared.provider.requests == copied.provider.requests
        assert [repr(request) for request in shared.provider.requests] == [
            repr(request)
            for request in copied.provider.requests  # 1 and True are equal, but not the same
        ]
        assert shared.events == copied.events
        assert await shared.context.get_messages() == await copied.context.get_messages()


# ── who is asked how ─────────────────────────────────────────────────────────────────────────────


async def test_only_the_very_methods_of_the_built_in_context_are_shared():
    context = SimpleContext()
    assert shared_form(context.get_messages) is not None
    assert shared_form(context.get_messages_for_request) is not None
    assert shared_form(OfThirdParties(context).get_messages) is None
    original = context.get_messages_for_request

    @wraps(original)
    async def patched(**keywords: Any) -> Any:
        return [*await original(**keywords), {"role": "user", "content": "added"}]

    context.get_messages_for_request = patched  # type: ignore[method-assign, assignment]
    assert shared_form(context.get_messages_for_request) is None
    provider = Provider(10**6)
    provider.answers = [answer("a")]
    await BasicLoop(read_options("loop-basic", None)).execute("go", context, {"p": provider}, {}, HookRegistry())  # type: ignore[dict-item]
    assert [message["content"] for message in provider.requests[0]["messages"]] == ["go", "added"]


async def test_a_class_whose_method_is_replaced_is_asked_for_copies(monkeypatch):
    original = SimpleContext.get_messages_for_request

    @wraps(original)
    async def filtered(self: SimpleContext, *args: Any, **keywords: Any) -> Any:
        return (await original(self, *args, **keywords))[-1:]

    monkeypatch.setattr(SimpleContext, "get_messages_for_request", filtered)
    assert shared_form(SimpleContext().get_messages_for_request) is None


async def test_an_observer_that_keeps_what_it_was_sent_does_not_see_later_changes():
    """Also where hooks are no registry of ours: what is emitted belongs to whoever gets it."""
    kept: list[Any] = []

    class Keeping:
        async def emit(self, event: str, data: dict[str, Any]) -> HookResult:
            kept.extend([data["messages"]] if "messages" in data else [])
            return HookResult(data=data)

        def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
            return {}

    context = SimpleContext()
    await context.set_messages(STRUCTURED[:1])
    await context.add_message({"role": "assistant", "content": "a"})
    before = await context.get_messages()
    provider = Provider(10**6)
    provider.answers = [answer("a")]
    await BasicLoop(read_options("loop-basic", None)).execute("go", context, {"p": provider}, {}, Keeping())  # type: ignore[dict-item, arg-type]
    assert kept[0][:2] == before
    spoil(kept[0])
    assert (await context.get_messages())[:2] == before


async def test_a_provider_that_changes_a_schema_changes_neither_the_tool_nor_later_requests():
    class Described(Look):
        name = "described"
        input_schema: Any = {"type": "object", "properties": {"path": {"type": "string"}}}  # noqa: RUF012

    provider = Provider(10**6)
    provider.answers = [answer("a"), answer("b")]
    loop, context = BasicLoop(read_options("loop-basic", None)), SimpleContext()
    tools: Any = {"look": Look(), "described": Described()}
    for _ in range(2):
        await loop.execute("go", context, {"p": provider}, tools, HookRegistry())  # type: ignore[dict-item]
    assert provider.requests[0]["tools"] == provider.requests[1]["tools"]
    assert Described.input_schema == {"type": "object", "properties": {"path": {"type": "string"}}}


# ── counted ──────────────────────────────────────────────────────────────────────────────────────


async def counts_of_a_turn(monkeypatch: pytest.MonkeyPatch, length: int, *, reads: bool) -> dict[str, int]:
    """What one turn with a model call builds, counts and copies after so many messages."""
    context = SimpleContext(ContextOptions(max_tokens=10**9))
    await context.set_messages([{"role": ("user", "assistant")[at % 2], "content": f"{at}"} for at in range(length)])
    loop, provider = BasicLoop(read_options("loop-basic", None)), Provider(10**9, spoils=reads)

    async def turn() -> None:
        provider.answers = [answer("a")]
        await loop.execute("go", context, {"p": provider}, {}, HookRegistry())  # type: ignore[dict-item]

    await turn()
    counted = {"built": 0, "estimated": 0, "copied": 0}
    build, estimate, own = Message.__init__, count_tokens, SharedList.own

    def built(self: Message, /, **fields: Any) -> None:
        counted["built"] += 1
        build(self, **fields)

    def estimated(*args: Any) -> int:
        counted["estimated"] += 1
        return estimate(*args)

    def owned(self: SharedList[Any]) -> None:
        counted["copied"] += len(self) if self.is_shared else 0
        own(self)

    with monkeypatch.context() as patch:
        patch.setattr(Message, "__init__", built)
        patch.setattr(conversation, "count_tokens", estimated)
        patch.setattr(SharedList, "own", owned)
        await turn()
    return counted


async def test_a_turn_builds_and_counts_new_messages_only_however_long_the_conversation(monkeypatch):
    expected = {"built": 2, "estimated": 2, "copied": 0}  # the answer before and the prompt; the prompt and the answer
    assert await counts_of_a_turn(monkeypatch, 10, reads=False) == expected
    assert await counts_of_a_turn(monkeypatch, 2000, reads=False) == expected


async def test_a_provider_that_reads_the_request_pays_for_one_copy_of_each_message(monkeypatch):
    counted = await counts_of_a_turn(monkeypatch, 100, reads=True)
    assert counted["copied"] == 100 + 2 + 1


async def bytecodes_of_a_turn(length: int, handlers: int, *fields: str) -> int:
    """How many bytecodes one turn with a model call takes after so many messages, with handlers of these fields."""
    context = SimpleContext(ContextOptions(max_tokens=10**9))
    await context.set_messages([{"role": ("user", "assistant")[at % 2], "content": f"{at}"} for at in range(length)])
    loop, provider, hooks = BasicLoop(read_options("loop-basic", None)), Provider(10**9, spoils=False), HookRegistry()
    for _ in range(handlers):
        hooks.register("*", lambda *_: None, fields=fields)
    counted = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return count

    for trace in (None, None, count):
        provider.answers = [answer("a")]
        turn = loop.execute("go", context, {"p": provider}, {}, hooks)  # type: ignore[dict-item]
        before = sys.gettrace()
        sys.settrace(trace or before)
        try:
            await turn
        finally:
            sys.settrace(before)
    return counted


@pytest.mark.parametrize("handlers", [0, 5])
async def test_a_turn_takes_as_many_steps_however_long_the_conversation(handlers):
    few, many = [await bytecodes_of_a_turn(length, handlers, "iteration") for length in (10, 3000)]
    assert abs(many - few) < 300  # a step for each message would be thousands; timers and the event loop take a few


async def test_no_message_is_copied_for_handlers_that_do_not_ask_for_the_messages(monkeypatch):
    """Counted where the event is built and where copies are made: copying a long list takes no bytecodes of its own."""
    built: list[Any] = []
    copied: list[Any] = []

    def noted(function: Any, calls: list[Any]) -> Any:
        def call(*given: Any) -> Any:
            calls.append(given[-1])
            return function(*given)

        return call

    monkeypatch.setattr(RequestMessages, "for_event", noted(RequestMessages.for_event, built))
    monkeypatch.setattr(dispatch, "copy_json", noted(copy_json, copied))
    monkeypatch.setattr(Copies, "make", noted(Copies.make, copied))
    await bytecodes_of_a_turn(100, 5, "iteration", "status")
    assert built == []
    assert [value for value in copied if value.get("messages")] == []
    await bytecodes_of_a_turn(100, 5, "messages")
    assert len(built) == 3  # one for each of the turns
    assert len([value for value in copied if value.get("messages")]) == 3 * 5


async def test_handlers_of_the_messages_get_copies_of_their_own_at_no_step_for_each_message():
    three, ten = [
        await bytecodes_of_a_turn(3000, handlers, "messages") - await bytecodes_of_a_turn(20, handlers, "messages")
        for handlers in (3, 10)
    ]
    assert abs(ten - three) < 5000  # one step for each message and handler would be 20,000

    context, loop, provider, hooks = (
        SimpleContext(),
        BasicLoop(read_options("loop-basic", None)),
        Provider(10**9),
        HookRegistry(),
    )
    await context.set_messages([{"role": "user", "content": f"{at}"} for at in range(20)])
    received: list[dict[str, Any]] = []
    for _ in range(3):
        hooks.register("provider:request", lambda _, data: received.extend(data["messages"]), fields=("messages",))
    provider.answers = [answer("a")]
    await loop.execute("go", context, {"p": provider}, {}, hooks)  # type: ignore[dict-item]
    assert len({id(message) for message in received}) == len(received) > 3 * 20


async def test_a_request_shows_the_conversation_as_it_was_when_hooks_were_asked():
    context, hooks = SimpleContext(), HookRegistry()
    provider = Provider(10**6)
    provider.answers = [answer("a", 1), answer("b")]

    async def add(event: str, data: dict[str, Any]) -> None:
        await context.add_message({"role": "user", "content": f"added at {data['iteration']}"})

    hooks.register("provider:request", add, fields=("iteration",))
    tools: Any = {"look": Look()}
    await BasicLoop(read_options("loop-basic", None)).execute("go", context, {"p": provider}, tools, hooks)  # type: ignore[dict-item]
    shown = [[message["content"] for message in request["messages"]] for request in provider.requests]
    assert shown[0] == ["go"]
    assert "added at 1" in shown[1]
    assert "added at 2" not in shown[1]


async def test_a_conversation_that_is_replaced_while_hooks_are_asked_is_shown_as_it_was():
    context, hooks = SimpleContext(), HookRegistry()
    provider = Provider(10**6)
    provider.answers = [answer("a"), answer("b")]
    hooks.register("provider:request", lambda *_: context._conversation.replace([]), fields=())
    for prompt in ("go", "on"):
        await BasicLoop(read_options("loop-basic", None)).execute(prompt, context, {"p": provider}, {}, hooks)  # type: ignore[dict-item]
    shown = [[message["content"] for message in request["messages"]] for request in provider.requests]
    assert shown[0] == ["go"]
    assert shown[1][-1] == "on"


# ── what is kept between calls and turns ─────────────────────────────────────────────────────────


async def test_a_tool_that_changes_flat_input_does_not_change_the_conversation():
    given: dict[str, Any] = {"path": "x", "limit": 3}
    call = ToolCall(id="c", name="look", arguments=given)
    provider, context = Provider(10**6, spoils=False), SimpleContext()
    block = ToolCallBlock(id="c", name="look", input=given)
    provider.answers = [ChatResponse(content=[block], tool_calls=[call]), answer("b")]
    tools: Any = {"look": Look()}
    await BasicLoop(read_options("loop-basic", None)).execute("go", context, {"p": provider}, tools, HookRegistry())  # type: ignore[dict-item]
    stored = (await context.get_messages())[1]
    assert stored["tool_calls"][0]["arguments"] == {"path": "x", "limit": 3}
    assert call.arguments == {"path": "x", "limit": 3}


async def test_input_is_checked_against_the_schema_that_the_tool_has_now():
    class Strict(Look):
        wanted = "string"

        @property
        def input_schema(self) -> dict[str, Any]:
            return {"type": "object", "properties": {"path": {"type": self.wanted}}}

    tool, context, loop = Strict(), SimpleContext(), BasicLoop(read_options("loop-basic", None))
    results: list[str] = []
    for wanted in ("string", "integer", "string"):
        tool.wanted = wanted
        provider = Provider(10**6, spoils=False)
        call = ToolCall(id=f"{len(results)}", name="look", arguments={"path": "x"})
        block = ToolCallBlock(id=call.id, name=call.name, input=call.arguments)
        provider.answers = [ChatResponse(content=[block], tool_calls=[call]), answer("b")]
        tools: Any = {"look": tool}
        await loop.execute("go", context, {"p": provider}, tools, HookRegistry())  # type: ignore[dict-item]
        results.append((await context.get_messages())[-2]["content"])
    assert ["do not fit" in result for result in results] == [False, True, False]


async def test_a_request_describes_a_tool_as_it_describes_itself_now():
    class Described(Look):
        description = "first"

        async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
            self.description = "second"
            return ToolResult(output="seen")

    provider, context = Provider(10**6), SimpleContext()
    provider.answers = [answer("a", 1), answer("b")]
    tools: Any = {"look": Described()}
    await BasicLoop(read_options("loop-basic", None)).execute("go", context, {"p": provider}, tools, HookRegistry())  # type: ignore[dict-item]
    assert [request["tools"][0]["description"] for request in provider.requests] == ["first", "second"]
