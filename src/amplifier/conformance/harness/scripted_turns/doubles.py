"""The doubles of a scripted turn: a context, providers, tools and somebody to ask. They write down everything.

All of them suspend where the real ones would. Above stands `_session`; below stand the script and the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

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

from .record import plain
from .script import RAISED, Answer, Call

if TYPE_CHECKING:
    from .session import ScriptedSession

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"key": {"type": "string", "description": "Any text."}},
    "required": ["key"],
}


class ScriptedContext:
    """Keeps everything; the view it gives out for a request is recognisable.

    Args:
        session: Where things happen.
        history: How many messages of an earlier turn it begins with.
        compacts: The view leaves out that earlier turn.
        keeps: The view holds at most so many of the newest messages; for turns that never end.
        fails: ``add`` or ``view`` and the number of the call that fails.
    """

    def __init__(
        self,
        session: ScriptedSession,
        *,
        history: int = 0,
        compacts: bool = False,
        keeps: int | None = None,
        fails: list[Any] | None = None,
    ) -> None:
        self._session = session
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
        self._session.note("storing", str(copied["role"]), copied)
        await self._session.suspend("context.add_message")
        self._maybe_fail("add")
        self._store(copied)

    def _store(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._session.note("stored", str(message.get("role")), message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """A view that begins with a message of its own."""
        await self._session.suspend("context.get_messages_for_request")
        self._maybe_fail("view")
        number = self._counts["view"]
        shown = self.messages[self._earlier :]
        if self._keeps is not None:
            shown = shown[-self._keeps :]
        view = [{"role": "user", "content": f"view{number}x"}, *plain(shown)]
        self._session.note("view", f"view{number}x", plain(view))
        return view

    async def get_messages(self) -> list[dict[str, Any]]:
        """Everything."""
        await self._session.suspend("context.get_messages")
        copied: list[dict[str, Any]] = plain(self.messages)
        return copied

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything; what is added at the end counts as stored."""
        await self._session.suspend("context.set_messages")
        new = [plain(message) for message in messages]
        known = len(self.messages) if new[: len(self.messages)] == self.messages else 0
        self.messages[:] = new[:known]
        for message in new[known:]:
            self._store(message)

    async def clear(self) -> None:
        """Forget everything."""
        await self._session.suspend("context.clear")
        self.messages.clear()

    def _maybe_fail(self, operation: str) -> None:
        self._counts[operation] += 1
        if self._fails == [operation, self._counts[operation]]:
            self._session.turn.context_failed = True
            raise OSError(28, "No space left on device")


class ScriptedProvider:
    """Gives the answers of the script, one for each call."""

    def __init__(self, session: ScriptedSession, name: str) -> None:
        self._session = session
        self.name = name

    def get_info(self) -> ProviderInfo:
        """A provider that needs nothing."""
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
        session = self._session
        if not isinstance(request, ChatRequest):
            session.note("asked", self.name, None)
            raise TypeError(f"complete takes a ChatRequest, got {type(request).__name__}")
        session.note("asked", self.name, plain(request))
        answer = session.next_answer(bool(request.tools))
        for _ in range(answer.steps):
            await session.suspend("provider.complete")
        if answer.stops == "asked":
            session.stop()
        error = answer.exception()
        if error is not None:
            session.note("failed", self.name, error)
            raise error
        session.note("answered", self.name, answer)
        session.last_answer = answer
        return answer


class StreamingProvider(ScriptedProvider):
    """The same, for loops that want to hear the answer while it comes."""

    def __init__(self, session: ScriptedSession, name: str) -> None:
        super().__init__(session, name)
        self._streams = AnswerStreams(session.start_soon)
        session.register_cleanup(self._streams.aclose)

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Pieces of the next answer, and in the end the whole."""
        return self._streams.stream(self._pieces(request))

    @asynccontextmanager
    async def _pieces(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        async def chunks() -> AsyncIterator[StreamChunk]:
            response = (await self._answer(request)).response()
            for index, block in enumerate(response.content):
                await self._session.suspend("provider.stream")
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
    """Does what the script says for the call whose key it is given."""

    def __init__(self, session: ScriptedSession, name: str) -> None:
        self._session = session
        self.name = name
        self.description = f"The tool {name}."
        self.input_schema = SCHEMA

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return SCHEMA

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 - the contract's name
        """Run; what it returns may be no ToolResult, where the script says so."""
        session = self._session
        given = plain(input)
        key = given.get("key") if isinstance(given, dict) else None
        call = session.call_with(key, self.name)
        session.note("started", self.name, {"input": given, "call": call})
        session.running.add(id(given))
        try:
            await session.suspend(f"tool {self.name}")
            return await self._work(call)
        except Exception as error:
            session.note("raised", self.name, {"call": call, "error": error})
            raise
        except BaseException:
            session.note("interrupted", self.name, {"call": call})
            raise
        finally:
            session.running.discard(id(given))

    async def _work(self, call: Call | None) -> Any:
        session = self._session
        for step in range(0 if call is None else call.steps):
            if call is not None and call.stops and step == call.steps // 2:
                session.stop()
            await session.suspend(f"tool {self.name}")
        for _ in range(0 if call is None else call.idle):
            await anyio.lowlevel.checkpoint()
        if call is None:
            session.note("returned", self.name, {"call": None})
            return ToolResult(success=True, output="called with an input that nobody gave")
        if call.does.startswith("raises"):
            kind, _, message = call.does.removeprefix("raises ").partition(" ")
            raise RAISED[kind](message) if message or kind != "OSError" else OSError(2, "No such file")
        session.note("returned", self.name, {"call": call})
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
    """Answers as the question itself says."""

    def __init__(self, session: ScriptedSession) -> None:
        self._session = session

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Answer."""
        await self._session.suspend("approval")
        answer = "Allow" if prompt.startswith("yes:") else "Deny"
        self._session.note("approval", prompt, answer)
        return answer
