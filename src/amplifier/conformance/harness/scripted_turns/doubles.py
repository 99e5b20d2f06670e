"""The doubles of a scripted turn: context, providers, tools and approval system. They log everything.

All of them suspend where the real ones would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    ToolResult,
)
from amplifier.modules._llm_provider import AnswerStream, AnswerStreams

from .player import ScriptPlayer
from .record import plain
from .script import RAISED, Answer, Call

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

    def get_info(self) -> ProviderInfo:
        """A provider without credentials."""
        defaults = {"model": "model-1", "context_window": 100_000, "max_output_tokens": 4_000}
        return ProviderInfo(id=self.name, display_name=self.name, capabilities=["tools"], defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        """The one model."""
        return [ModelInfo(id="model-1", display_name="Model 1", context_window=100_000, max_output_tokens=4_000)]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """The next answer."""
        return (await self._answer(request)).response()

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The calls of a response."""
        return list(response.tool_calls or [])

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


class ScriptedApprovals:
    """Answers as the prompt itself demands."""

    def __init__(self, player: ScriptPlayer) -> None:
        self._player = player

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Allow when the prompt starts with ``yes:``."""
        await self._player.suspend("approval")
        answer = "Allow" if prompt.startswith("yes:") else "Deny"
        self._player.note("approval", prompt, answer)
        return answer
