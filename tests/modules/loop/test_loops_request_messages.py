"""The messages of a request belong to the provider: whatever it does with them, the context and later requests stay as they are.

A program of turns runs twice: with a loop that knows the messages of earlier requests, and with one that forgets them before each
turn. Provider, hooks and application change everything that they get.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import (
    ChatRequest,
    ChatResponse,
    HookRegistry,
    HookResult,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.kernel.hooks import hook_results
from amplifier.models import (
    ContextInjection,
    Model,
    ProviderInfo,
    ToolCallBlock,
    from_dict,
    to_dict,
)
from amplifier.modules.context import ContextOptions, count_tokens
from amplifier.modules.context import _conversation as conversation
from amplifier.modules.context.simple import SimpleContext
from amplifier.modules.loop import read_options
from amplifier.modules.loop._messages import RequestMessages
from amplifier.modules.loop.basic import BasicLoop
from amplifier.testing import TestCoordinator


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

    def __init__(self, window: int, *, spoils: bool = True, records: bool = True) -> None:
        self.answers: list[ChatResponse] = []
        self.requests: list[dict[str, Any]] = []
        self._window = window
        self._spoils = spoils
        self._records = records

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id="scripted", display_name="Scripted", defaults={"context_window": self._window}
        )

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        assert type(request.messages) is list
        if self._records:
            self.requests.append(to_dict(request))
        if self._spoils:
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
    blocks = [
        ToolCallBlock(id=f"{text}{at}", name="look", input={"path": {"deep": [at]}})
        for at in range(calls)
    ]
    made = [ToolCall(id=block.id, name=block.name, arguments=block.input) for block in blocks]
    said = from_dict(TextBlock, {"type": "text", "text": text, "mark": {"x": [1]}})
    return ChatResponse(content=[said, *blocks], tool_calls=made or None)


STRUCTURED: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "look", "mark": {"x": [1]}}],
        "metadata": {"n": {"m": 1}},
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "s", "name": "look", "arguments": {"deep": [1]}}],
    },
    {"role": "tool", "tool_call_id": "s", "content": [{"type": "new", "parts": [{"x": 1}]}]},
    {"role": "tool", "tool_call_id": "of no call", "content": "an orphan"},
    {"role": "system", "content": "obey"},
    {"role": "user", "content": "1"},
    {"role": "user", "content": "many words " * 40},
]

PLAIN: list[dict[str, Any]] = [
    {"role": "user", "content": "first", "vendor": "text"},
    {"role": "assistant", "content": [{"type": "text", "text": "a block"}]},
    {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "url", "url": "x"}}],
        "vendor": 1,
    },
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
            st.tuples(st.just("add"), st.sampled_from([*PLAIN, *STRUCTURED])),
            st.tuples(st.just("set"), st.lists(st.sampled_from(STRUCTURED), max_size=4)),
            st.tuples(st.just("set the same but for a type"), st.none()),
            st.tuples(st.just("clear"), st.none()),
            st.tuples(st.just("spoil what is returned"), st.none()),
            st.tuples(st.just("inject"), st.sampled_from(sorted(INJECTIONS))),
        ),
        max_size=8,
    )


async def run_turn(
    context: Any,
    provider: Any,
    *tools: Any,
    loop: BasicLoop | None = None,
    prompt: str = "go",
    hooks: Any = None,
) -> None:
    coordinator, loop = TestCoordinator(), loop or BasicLoop(read_options("loop-basic", None))
    await coordinator.mount("context", context)
    mounted = {tool.name: tool for tool in tools}
    await loop.execute(
        prompt, context, {"p": provider}, mounted, hooks or coordinator.hooks, coordinator
    )


class World:
    """A loop with everything around it, and a record of what everyone got."""

    def __init__(self, *, spoils: bool, window: int, listens: bool) -> None:
        self.context: Any = SimpleContext(ContextOptions(safety_margin=0, max_tokens=window))
        self.provider = Provider(window, spoils=spoils)
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
        injected = [
            item
            for item in self._injections
            if follows_result or not item.append_to_last_tool_result
        ]
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
                undo = (
                    self._hooks.register("provider:request", self._note) if self._listens else None
                )
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(hook_results, "timestamp", lambda: "now")
                    await run_turn(
                        self.context, self.provider, Look(), loop=self._loop, hooks=self._hooks
                    )
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
async def test_provider_changes_to_request_stay_invisible(program, window, listens):
    spoiled = World(spoils=True, window=window, listens=listens)
    left = World(spoils=False, window=window, listens=listens)
    for operation, argument in [
        *program,
        ("turn", 1),
        ("turn", 0),
    ]:  # what was spoiled shows in the next request
        await spoiled.perform(operation, argument)
        await left.perform(operation, argument)
        # 1 and True are equal, but not the same
        assert repr(spoiled.provider.requests) == repr(left.provider.requests)
        assert spoiled.events == left.events
        assert await spoiled.context.get_messages() == await left.context.get_messages()


async def test_context_changing_returned_messages_is_shown_current():
    """Published contexts return the very dicts that they store, and shorten them in place."""

    stored: list[dict[str, Any]] = []

    class Returning:
        async def add_message(self, message: dict[str, Any]) -> None:
            stored.append(message)

        async def get_messages(self) -> list[dict[str, Any]]:
            return stored

        async def get_messages_for_request(
            self, token_budget: int | None = None, provider: Any = None
        ) -> Any:
            return [*stored]

    loop, provider = BasicLoop(read_options("loop-basic", None)), Provider(10**6, spoils=False)
    seen: list[Any] = []

    async def complete(request: ChatRequest, **_: Any) -> ChatResponse:
        seen.append([(message.content, message.metadata) for message in request.messages])
        return answer("a")

    provider.complete = complete  # type: ignore[method-assign]
    stored.append({"role": "assistant", "content": "long", "metadata": {"n": [1]}})
    await run_turn(Returning(), provider, loop=loop, prompt="one")
    stored[0]["metadata"]["n"].append(2)
    stored[1]["content"] = "cut"
    await run_turn(Returning(), provider, loop=loop, prompt="two")
    assert seen[0][:2] == [("long", {"n": [1]}), ("one", None)]
    assert seen[1][:2] == [("long", {"n": [1, 2]}), ("cut", None)]


async def test_provider_changes_to_schema_stay_local():
    class Described(Look):
        name = "described"
        input_schema: Any = {"type": "object", "properties": {"path": {"type": "string"}}}  # noqa: RUF012

    provider = Provider(10**6)
    provider.answers = [answer("a"), answer("b")]
    loop, context = BasicLoop(read_options("loop-basic", None)), SimpleContext()
    for _ in range(2):
        await run_turn(context, provider, Look(), Described(), loop=loop)
    assert provider.requests[0]["tools"] == provider.requests[1]["tools"]
    assert Described.input_schema == {"type": "object", "properties": {"path": {"type": "string"}}}


# ── counted ──────────────────────────────────────────────────────────────────────────────────────


async def counts_of_a_turn(monkeypatch: pytest.MonkeyPatch, length: int) -> int:
    """How many messages one turn with a model call counts after so many; one of blocks has come since the last."""
    context = SimpleContext(ContextOptions(max_tokens=10**9))
    blocks = [
        {"role": "assistant", "content": [{"type": "text", "text": f"{at}"}]}
        for at in range(length + 1)
    ]
    await context.set_messages(
        [each for at in range(length) for each in ({"role": "user", "content": "?"}, blocks[at])]
    )
    loop, provider = BasicLoop(read_options("loop-basic", None)), Provider(10**9)

    async def turn() -> None:
        provider.answers = [answer("a")]
        await run_turn(context, provider, loop=loop)

    await turn()
    await context.add_message(blocks[-1])
    counted = 0

    def estimated(*args: Any) -> int:
        nonlocal counted
        counted += 1
        return count_tokens(*args)

    with monkeypatch.context() as patched:
        patched.setattr(conversation, "count_tokens", estimated)
        await turn()
    return counted


async def test_turn_counts_new_messages_only(monkeypatch):
    assert await counts_of_a_turn(monkeypatch, 10) == 2  # the prompt and the answer
    assert await counts_of_a_turn(monkeypatch, 2000) == 2


async def bytecodes_of_a_turn(length: int, handlers: int, *fields: str) -> int:
    """How many bytecodes one turn with a model call takes after so many messages, with handlers of these fields."""
    context = SimpleContext(ContextOptions(max_tokens=10**9))
    await context.set_messages(
        [{"role": ("user", "assistant")[at % 2], "content": f"{at}"} for at in range(length)]
    )
    loop, hooks = BasicLoop(read_options("loop-basic", None)), HookRegistry()
    provider = Provider(10**9, spoils=False, records=False)
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
        turn = run_turn(context, provider, loop=loop, hooks=hooks)
        before = sys.gettrace()
        sys.settrace(trace or before)
        try:
            await turn
        finally:
            sys.settrace(before)
    return counted


@pytest.mark.parametrize("handlers", [0, 5])
async def test_turn_takes_few_steps_per_message(handlers):
    short, long, longer = [
        await bytecodes_of_a_turn(length, handlers, "iteration") for length in (1000, 2000, 3000)
    ]
    assert (
        abs((longer - long) - (long - short)) < 1000
    )  # as many for the third thousand as for the second
    assert (longer - long) / 1000 < 80  # one copy of the dict and one of the model


async def test_events_without_readers_omit_messages(
    monkeypatch,
):
    built: list[Any] = []
    for_event = RequestMessages.for_event

    def noted(self: RequestMessages) -> Any:
        built.append(self)
        return for_event(self)

    monkeypatch.setattr(RequestMessages, "for_event", noted)
    await bytecodes_of_a_turn(100, 5, "iteration", "status")
    assert built == []
    await bytecodes_of_a_turn(100, 5, "messages")
    assert len(built) == 3  # one for each of the turns


async def test_message_handlers_get_copies():
    context, provider, hooks = SimpleContext(), Provider(10**9), HookRegistry()
    await context.set_messages([{"role": "user", "content": f"{at}"} for at in range(20)])
    received: list[dict[str, Any]] = []
    for _ in range(3):
        hooks.register(
            "provider:request",
            lambda _, data: received.extend(data["messages"]),
            fields=("messages",),
        )
    provider.answers = [answer("a")]
    await run_turn(context, provider, hooks=hooks)
    assert len({id(message) for message in received}) == len(received) > 3 * 20


async def test_request_shows_conversation_before_hooks():
    context, hooks = SimpleContext(), HookRegistry()
    provider = Provider(10**6)
    provider.answers = [answer("a", 1), answer("b")]

    async def add(event: str, data: dict[str, Any]) -> None:
        await context.add_message({"role": "user", "content": f"added at {data['iteration']}"})

    hooks.register("provider:request", add, fields=("iteration",))
    await run_turn(context, provider, Look(), hooks=hooks)
    shown = [
        [message["content"] for message in request["messages"]] for request in provider.requests
    ]
    assert shown[0] == ["go"]
    assert "added at 1" in shown[1]
    assert "added at 2" not in shown[1]


async def test_conversation_replaced_during_hooks_is_unchanged():
    context, hooks = SimpleContext(), HookRegistry()
    provider = Provider(10**6)
    provider.answers = [answer("a"), answer("b")]
    hooks.register("provider:request", lambda *_: context._conversation.replace([]), fields=())
    for prompt in ("go", "on"):
        await run_turn(context, provider, prompt=prompt, hooks=hooks)
    shown = [
        [message["content"] for message in request["messages"]] for request in provider.requests
    ]
    assert shown[0] == ["go"]
    assert shown[1][-1] == "on"


# ── what is kept between calls and turns ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["x", ["x"]], ids=["flat", "nested"])
async def test_tool_changes_to_input_stay_local(
    path,
):
    given: dict[str, Any] = {"path": path, "limit": 3}
    before = copy.deepcopy(given)
    call = ToolCall(id="c", name="look", arguments=given)
    provider, context, hooks = Provider(10**6, spoils=False), SimpleContext(), HookRegistry()
    block = ToolCallBlock(id="c", name="look", input=given)
    provider.answers = [ChatResponse(content=[block], tool_calls=[call]), answer("b")]
    reported: list[Any] = []
    hooks.register("tool:post", lambda _, data: reported.append(data["tool_input"]))
    await run_turn(context, provider, Look(), hooks=hooks)
    stored = (await context.get_messages())[1]
    assert stored["tool_calls"][0]["arguments"] == call.arguments == before
    assert reported == [before]


async def test_input_is_checked_against_current_schema():
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
        await run_turn(context, provider, tool, loop=loop)
        results.append((await context.get_messages())[-2]["content"])
    assert ["do not fit" in result for result in results] == [False, True, False]


async def test_request_has_current_tool_description():
    class Described(Look):
        description = "first"

        async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
            self.description = "second"
            return ToolResult(output="seen")

    provider, context = Provider(10**6), SimpleContext()
    provider.answers = [answer("a", 1), answer("b")]
    await run_turn(context, provider, Described())
    assert [request["tools"][0]["description"] for request in provider.requests] == [
        "first",
        "second",
    ]
