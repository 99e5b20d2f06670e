"""The doubles of a scripted turn: context, providers, tools, approval system and hooks. They log everything.

All of them suspend where the real ones would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.target.turns.player import ScriptPlayer
from amplifier.conformance.target.turns.record import plain, words_of
from amplifier.conformance.target.turns.script import RAISED, Answer, Call
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    HookResult,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResult,
)
from amplifier.modules.providers._streams import AnswerStream, AnswerStreams
from amplifier.testing import MockApprovalSystem, MockProvider

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"key": {"type": "string", "description": "Any text."}},
    "required": ["key"],
}


class ScriptedContext:
    """Stores every message; each view for a request starts with a marker message.

    Args:
        player: The state of the turn.
        history: How many messages of an earlier turn it starts with.
        compacts: The view leaves out that earlier turn.
        keeps: The view holds at most so many of the newest messages; for turns that never end.
        fails: ``add`` or ``view`` and the number of the call that fails.
    """

    def __init__(
        self,
        player: ScriptPlayer,
        *,
        history: int = 0,
        compacts: bool = False,
        keeps: int | None = None,
        fails: list[Any] | None = None,
    ) -> None:
        self._player = player
        roles = ("user", "assistant")
        self.messages: list[dict[str, Any]] = [
            {"role": roles[number % 2], "content": f"earlier{number}x"} for number in range(history)
        ]
        self._earlier = history if compacts else 0
        self._keeps = keeps
        self._fails = fails
        self._counts = {"add": 0, "view": 0}

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message."""
        if not isinstance(message, Mapping):
            raise TypeError(f"add_message takes a dict, got {type(message).__name__}")
        if not message.get("role"):
            raise ValueError(f"a message needs a role; got the keys {sorted(message)!r}")
        copied = plain(message)
        self._player.note("storing", str(copied["role"]), copied)
        await self._player.suspend("context.add_message")
        self._maybe_fail("add")
        self._store(copied)

    def _store(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._player.note("stored", str(message.get("role")), message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """A view that starts with a marker message."""
        await self._player.suspend("context.get_messages_for_request")
        self._maybe_fail("view")
        number = self._counts["view"]
        shown = self.messages[self._earlier :]
        if self._keeps is not None:
            shown = shown[-self._keeps :]
        view = [{"role": "user", "content": f"view{number}x"}, *plain(shown)]
        self._player.note("view", f"view{number}x", plain(view))
        return view

    async def get_messages(self) -> list[dict[str, Any]]:
        """All messages."""
        await self._player.suspend("context.get_messages")
        copied: list[dict[str, Any]] = plain(self.messages)
        return copied

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything; messages added at the end are logged as stored."""
        await self._player.suspend("context.set_messages")
        new = [plain(message) for message in messages]
        known = len(self.messages) if new[: len(self.messages)] == self.messages else 0
        self.messages[:] = new[:known]
        for message in new[known:]:
            self._store(message)

    async def clear(self) -> None:
        """Remove all messages."""
        await self._player.suspend("context.clear")
        self.messages.clear()

    def _maybe_fail(self, operation: str) -> None:
        self._counts[operation] += 1
        if self._fails == [operation, self._counts[operation]]:
            self._player.turn.context_failed = True
            raise OSError(28, "No space left on device")


class ScriptedProvider:
    """Returns the answers of the script, one for each call."""

    def __init__(self, player: ScriptPlayer, name: str) -> None:
        self._player = player
        self.name = name
        double = MockProvider(self._respond, name=name)
        self.get_info: Callable[..., Any] = double.get_info
        self.list_models: Callable[..., Any] = double.list_models
        self.complete: Callable[..., Any] = double.complete
        self.parse_tool_calls: Callable[..., Any] = double.parse_tool_calls

    async def _respond(self, request: Any) -> ChatResponse:
        return (await self._answer(request)).response()

    async def _answer(self, request: Any) -> Answer:
        player = self._player
        if not isinstance(request, ChatRequest):
            player.note("asked", self.name, None)
            raise TypeError(f"complete takes a ChatRequest, got {type(request).__name__}")
        player.note("asked", self.name, plain(request))
        answer = player.next_answer(bool(request.tools))
        for _ in range(answer.steps):
            await player.suspend("provider.complete")
        if answer.stops == "asked":
            player.stop()
        error = answer.exception()
        if error is not None:
            player.note("failed", self.name, error)
            raise error
        player.note("answered", self.name, answer)
        player.last_answer = answer
        return answer


class StreamingProvider(ScriptedProvider):
    """The same provider with a stream method."""

    def __init__(self, player: ScriptPlayer, name: str) -> None:
        super().__init__(player, name)
        core = player.mounted.session.coordinator
        self._streams = AnswerStreams(core.start_soon)
        core.register_cleanup(self._streams.aclose)

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """The next answer in chunks, the whole response last."""
        return self._streams.stream(self._pieces(request))

    @asynccontextmanager
    async def _pieces(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        async def chunks() -> AsyncIterator[StreamChunk]:
            response = (await self._answer(request)).response()
            for index, block in enumerate(response.content):
                await self._player.suspend("provider.stream")
                yield StreamChunk(kind="block_start", index=index, block_type=block.type)
                text = block.text if isinstance(block, TextBlock) else None
                if isinstance(block, ThinkingBlock):
                    text = block.thinking
                if text:
                    yield StreamChunk(kind="block_delta", index=index, block_type=block.type, text=text)
                if not isinstance(block, ToolCallBlock):
                    yield StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)
            yield StreamChunk(kind="response", response=response)

        pieces = chunks()
        try:
            yield pieces
        finally:
            with anyio.CancelScope(shield=True):
                await pieces.aclose()  # type: ignore[attr-defined]  # an async generator


class ScriptedTool:
    """Does what the script holds for the call whose key is in the input."""

    def __init__(self, player: ScriptPlayer, name: str) -> None:
        self._player = player
        self.name = name
        self.description: str = f"The tool {name}."
        self.input_schema = SCHEMA

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return SCHEMA

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 - the contract's name
        """Run the call; the script may make it return something else than a ToolResult."""
        player = self._player
        given = plain(input)
        key = given.get("key") if isinstance(given, dict) else None
        call = player.call_with(key, self.name)
        player.note("started", self.name, {"input": given, "call": call})
        player.running.add(id(given))
        try:
            await player.suspend(f"tool {self.name}")
            return await self._work(call)
        except Exception as error:
            player.note("raised", self.name, {"call": call, "error": error})
            raise
        except BaseException:
            player.note("interrupted", self.name, {"call": call})
            raise
        finally:
            player.running.discard(id(given))

    async def _work(self, call: Call | None) -> Any:
        player = self._player
        if call is None:
            player.note("returned", self.name, {"call": None})
            return ToolResult(success=True, output="called with an input that the model did not give")
        for step in range(call.steps):
            if call.stops and step == call.steps // 2:
                player.stop()
            await player.suspend(f"tool {self.name}")
        for _ in range(call.idle):
            await anyio.lowlevel.checkpoint()
        if call.does.startswith("raises"):
            kind, _, message = call.does.removeprefix("raises ").partition(" ")
            raise RAISED[kind](message) if message or kind != "OSError" else OSError(2, "No such file")
        player.note("returned", self.name, {"call": call})
        return result_of(call)


def result_of(call: Call) -> Any:
    """What a tool returns for a call."""
    mark = call.mark
    results: dict[str, Any] = {
        "fails": ToolResult(success=False, error={"message": f"{mark}: it did not work"}),
        "fails silently": ToolResult(success=False),
        "nothing": ToolResult(success=True, output=None),
        "empty": ToolResult(success=True, output=""),
        "zero": ToolResult(success=True, output=0),
        "returns object": ToolResult(success=True, output={mark: mark, "list": [1, None, {"deep": "ä"}]}),
        "returns list": ToolResult(success=True, output=[mark, 2.5, {"a": None}]),
        "returns much": ToolResult(success=True, output=f"{mark} " + "word " * 2_000),
        "returns blocks": ToolResult(success=True, output=mark, content=[TextBlock(text=f"{mark} as a block")]),
        "returns None": None,
        "returns str": mark,
    }
    return results.get(call.does, ToolResult(success=True, output=f"{mark} „{call.tool}“ ✓"))


def scripted_approvals(player: ScriptPlayer) -> MockApprovalSystem:
    """A user who answers as the prompt itself demands: allows what starts with ``yes:``."""

    async def answer(prompt: str) -> str:
        await player.suspend("approval")
        chosen = "Allow" if prompt.startswith("yes:") else "Deny"
        player.note("approval", prompt, chosen)
        return chosen

    return MockApprovalSystem(answer)


FIRST = -1_000_000
RESULT_KEYS = ("result", "tool_result")
_SUSPENDING = ("prompt", "provider", "tool")
"""Events at which the logging hook suspends; not at execution:start, before which a turn has not begun."""
_ENDLESS = 300


class ScriptedHooks:
    """Both hooks; they are registered with the session's own registry."""

    def __init__(self, player: ScriptPlayer) -> None:
        self._player = player
        self._answered: set[tuple[str, int]] = set()
        self._request_denied = False
        self._repeats = 0
        self._registered: list[Callable[[], None]] = []

    def register(self, hooks: Any) -> None:
        """Register both; the logging hook runs before every other."""
        self._registered.append(hooks.register("*", self._record, priority=FIRST, name="everything"))
        for event in ("prompt:submit", "provider:request", "provider:response", "tool:pre", "tool:post"):
            self._registered.append(hooks.register(event, self._decide, name="scripted"))

    def unregister(self) -> None:
        """Unregister both."""
        for end in self._registered:
            end()

    def reset(self) -> None:
        """Forget which results were returned already."""
        self._answered.clear()
        self._request_denied = False
        self._repeats = 0

    async def _record(self, event: str, data: dict[str, Any]) -> None:
        self._player.note("event", event, data)
        if event.partition(":")[0] in _SUSPENDING:
            await self._player.suspend(event)

    async def _decide(self, event: str, data: dict[str, Any]) -> HookResult | None:
        player = self._player
        if event == "provider:response":
            if player.last_answer is not None and player.last_answer.stops == "told":
                player.stop()
            return None
        if event == "prompt:submit":
            return self._answer(event, player.turn.script.submit, 0, "prompt-submit-x", data)
        if event == "provider:request":
            return self._decide_request(data)
        given = data.get("tool_input")
        key = given.get("key") if isinstance(given, Mapping) else None
        call = player.call_with(key, data.get("tool_name"))
        if call is None or (event, call.number) in self._answered:
            return None
        action = call.pre if event == "tool:pre" else call.post
        return self._answer(event, action, call.number, call.word(event), data, call)

    def _decide_request(self, data: dict[str, Any]) -> HookResult | None:
        player = self._player
        if self._request_denied:
            self._repeats += 1
            if self._repeats > _ENDLESS:
                player.give_up("O20")
            return HookResult(action="deny", reason="denied before, and still denied")
        answer: Answer | None = player.peek_answer()
        if answer is None or answer.request is None or ("provider:request", answer.number) in self._answered:
            return None
        return self._answer("provider:request", answer.request, answer.number, answer.word(), data)

    def _answer(
        self, event: str, action: str | None, number: int, word: str, data: dict[str, Any], call: Call | None = None
    ) -> HookResult | None:
        made = _hook_result(event, action, word, data, call)
        if made is not None:
            self._answered.add((event, number))
            self._request_denied |= made.action == "deny" and event == "provider:request"
            detail = {"action": made.action, "what": action, "word": word, "number": number}
            self._player.note("verdict", event, detail)
        return made


def _hook_result(
    event: str, action: str | None, word: str, data: dict[str, Any], call: Call | None
) -> HookResult | None:
    """The hook's result; None for none, also where a modify would find nothing to change."""
    match action:
        case "deny":
            return HookResult(action="deny", reason=f"because {word}")
        case "deny silently":
            return HookResult(action="deny")
        case "inject" | "inject as user":
            role: Any = "user" if action == "inject as user" else "system"
            return HookResult(action="inject_context", context_injection=f"mind {word}", context_injection_role=role)
        case "whisper" | "whisper to the result":
            return HookResult(
                action="inject_context",
                context_injection=f"psst {word}",
                context_injection_role="user",
                ephemeral=True,
                append_to_last_tool_result=action == "whisper to the result",
            )
        case "ask yes" | "ask no":
            return HookResult(action="ask_user", approval_prompt=f"{action.removeprefix('ask ')}: may it {word}?")
        case "modify":
            changed = _modified(event, data, word, call)
            return HookResult(action="modify", data={**data, **changed}) if changed else None
    return None


def _modified(event: str, data: dict[str, Any], word: str, call: Call | None) -> dict[str, Any]:
    """The changed keys of a payload."""
    if event == "prompt:submit":
        return {"prompt": f"{data.get('prompt')} {word}"}
    if call is None:
        return {}
    if event == "tool:pre":
        return {"tool_input": {"key": call.new_key}}
    found = {key: data[key] for key in RESULT_KEYS if key in data and call.mark in words_of(shown(data[key]))}
    return {key: _replaced(value, call.mark, call.new_mark) for key, value in found.items()}


def shown(value: Any) -> Any:
    """A tool's result in a payload as JSON values, whatever type the loop puts there."""
    return [value.output, value.error] if isinstance(value, ToolResult) else value


def _replaced(value: Any, old: str, new: str) -> Any:
    """A value with one word replaced wherever it occurs, as redaction does."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, ToolResult):
        error = None if value.error is None else _replaced(value.error, old, new)
        return ToolResult(success=value.success, output=_replaced(value.output, old, new), error=error)
    if isinstance(value, Mapping):
        return {_replaced(key, old, new): _replaced(member, old, new) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(member, old, new) for member in value]
    return value
