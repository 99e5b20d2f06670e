"""A provider for tests: plays scripted turns and records the requests."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, final, get_args

import anyio
import attrs

from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

from .script import Script, Scripted

_DEFAULT_TEXT = "Mock response"
_CONTEXT_WINDOW = 100_000
_MAX_OUTPUT_TOKENS = 4_096
_BLOCKS = get_args(ContentBlockUnion)

NamedCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool call as tool name and arguments; the provider makes up its id."""

Part: TypeAlias = "str | ToolCall | NamedCall | ContentBlockUnion"
"""One piece of an answer: text, a tool call, or a content block."""

Answer: TypeAlias = "Part | Sequence[Part] | ChatResponse | BaseException | type[BaseException]"
"""What one turn comes to: pieces in order, a whole response, or an exception to raise."""


@final
@attrs.frozen
class Delayed:
    """A turn that takes its time: ``Delayed(2.5, "at last")``."""

    seconds: float
    turn: Turn


Turn: TypeAlias = "Answer | Delayed | Callable[[Any], Answer | Awaitable[Answer]]"
"""One step of a script; a function is called with the request and gives the answer."""


@final
class MockProvider(Scripted):
    """Plays one turn per call of `complete`.

        provider = MockProvider([("echo", {"text": "hi"}), "All done."])

    asks for one tool in its first answer and ends with text in its second. Use it as a context manager, or call
    `assert_exhausted`, to find turns that were never requested.

    Args:
        turns: What to answer, in order: text; a tool call as ``(name, arguments)`` or ToolCall; a list of such pieces
            and of content blocks; a ChatResponse; an exception to raise; a function of the request; or one of these as
            `Delayed`. Left out, every call gets the same short text; an empty list means that no call is expected.
        name: The provider's name.
        defaults: More for the ``defaults`` of `get_info`, such as another ``context_window``.
        delay: Seconds to wait before each answer.

    Attributes:
        requests: A copy of every request, in order.
        options: The keywords of every call, in order.
    """

    def __init__(
        self,
        turns: Sequence[Turn] | None = None,
        *,
        name: str = "mock",
        defaults: Mapping[str, Any] | None = None,
        delay: float = 0.0,
    ) -> None:
        if isinstance(turns, str):
            raise TypeError(f"MockProvider takes a list of turns, got the text {turns!r}; write [{turns!r}]")
        self.name = name
        self.requests: list[Any] = []
        self.options: list[dict[str, Any]] = []
        self._defaults = dict(defaults or {})
        self._delay = delay
        self._ids = itertools.count(1)
        self._script: Script[object] | None = None if turns is None else Script(f"MockProvider {name!r}", turns, "turn")

    def __repr__(self) -> str:
        return f"<MockProvider {self.name!r} called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """How often `complete` was called."""
        return len(self.requests)

    @property
    def last_request(self) -> Any:
        """The newest request; None before the first."""
        return self.requests[-1] if self.requests else None

    def get_info(self) -> ProviderInfo:
        """Describe a provider that can do everything and needs nothing."""
        defaults = {
            "model": "mock-model",
            "context_window": _CONTEXT_WINDOW,
            "max_output_tokens": _MAX_OUTPUT_TOKENS,
            **self._defaults,
        }
        return ProviderInfo(id=self.name, display_name="Mock", capabilities=["tools"], defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        """The one model there is."""
        defaults = self.get_info().defaults
        return [
            ModelInfo(
                id=defaults["model"],
                display_name="Mock model",
                context_window=defaults["context_window"],
                max_output_tokens=defaults["max_output_tokens"],
                capabilities=["tools"],
            )
        ]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Play the next turn.

        Raises:
            AssertionError: The script has none left.
            BaseException: The turn is an exception.
        """
        self.requests.append(copy.deepcopy(request))
        self.options.append(kwargs)
        turn: Any = _DEFAULT_TEXT if self._script is None else self._script.take(f"complete({_about(request)})")
        if self._delay > 0:
            await anyio.sleep(self._delay)
        while True:
            if isinstance(turn, Delayed):
                await anyio.sleep(turn.seconds)
                turn = turn.turn
            elif isinstance(turn, BaseException) or (isinstance(turn, type) and issubclass(turn, BaseException)):
                raise turn
            elif isinstance(turn, ChatResponse):
                return copy.deepcopy(turn)
            elif callable(turn):
                turn = turn(request)
                if inspect.isawaitable(turn):
                    turn = await turn
            else:
                return self._response(turn)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The calls of a response; of one that lists none, those among its content blocks."""
        if response.tool_calls is not None:
            return list(response.tool_calls)
        return [
            ToolCall(id=block.id, name=block.name, arguments=block.input)
            for block in response.content
            if isinstance(block, ToolCallBlock)
        ]

    def _response(self, turn: Any) -> ChatResponse:
        parts = turn if isinstance(turn, list) else [turn]
        blocks = [self._block(part) for part in parts]
        calls = [ToolCall(id=b.id, name=b.name, arguments=b.input) for b in blocks if isinstance(b, ToolCallBlock)]
        words = sum(len(block.text.split()) for block in blocks if isinstance(block, TextBlock))
        asked, answered = max(len(self.requests), 1) * 10, words + 5 * len(calls)
        return ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered),
            finish_reason="tool_calls" if calls else "stop",
        )

    def _block(self, part: Any) -> Any:
        if isinstance(part, str):
            return TextBlock(text=part)
        if isinstance(part, ToolCall):
            return ToolCallBlock(id=part.id, name=part.name, input=part.arguments)
        if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str) and isinstance(part[1], Mapping):
            return ToolCallBlock(id=f"call_{next(self._ids)}", name=part[0], input=dict(part[1]))
        if isinstance(part, _BLOCKS):
            return copy.deepcopy(part)
        raise TypeError(
            f"MockProvider {self.name!r} cannot play {part!r}; expected text, a ToolCall, (name, arguments), "
            "a content block, a list of those, a ChatResponse, an exception, a function, or Delayed"
        )


def _about(request: Any) -> str:
    messages = getattr(request, "messages", request)
    return f"{len(messages)} messages" if isinstance(messages, Sequence) else type(request).__name__
