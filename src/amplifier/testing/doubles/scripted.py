"""Doubles that play a script: a provider, an orchestrator and an approval system."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from types import TracebackType
from typing import Any, Self, TypeAlias, final, get_args

import anyio
import anyio.lowlevel
import attrs

from amplifier.events import EXECUTION_END, EXECUTION_START, ORCHESTRATOR_COMPLETE
from amplifier.models import (
    ApprovalDefault,
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

_MAX_SHOWN = 80


# An unexpected call raises an AssertionError immediately. The code under test may swallow it, so
# assert_exhausted() raises it again. It also reports steps that were never played.
@final
class Script:
    """Steps that are returned in order, once each.

    Args:
        owner: The double, for messages: ``MockProvider 'mock'``.
        steps: The steps to play.
        unit: The name of one step, for messages: ``turn``, ``response``.
    """

    __slots__ = ("_owner", "_position", "_steps", "_unexpected", "_unit")

    def __init__(self, owner: str, steps: Iterable[Any], unit: str) -> None:
        self._owner = owner
        self._steps = list(steps)
        self._unit = unit
        self._position = 0
        self._unexpected: list[str] = []

    def __repr__(self) -> str:
        return f"<script of {self._owner}: {self._position} of {self._scripted()} played>"

    @property
    def remaining(self) -> list[Any]:
        """The steps that have not been played."""
        return self._steps[self._position :]

    def take(self, call: str) -> Any:
        """Return the next step.

        Args:
            call: The call, for the message.

        Raises:
            AssertionError: No step is left.
        """
        if self._position == len(self._steps):
            number = self._position + len(self._unexpected) + 1
            message = (
                f"{self._owner}: unexpected call {number}, {call}; expected {self._scripted()}, "
                f"all of which were played; add a {self._unit} to the script or find the caller"
            )
            self._unexpected.append(message)
            raise AssertionError(message)
        step = self._steps[self._position]
        self._position += 1
        return step

    def assert_exhausted(self) -> None:
        """Check that every step was played and that no more were requested.

        Raises:
            AssertionError: Otherwise.
        """
        if self._unexpected:
            raise AssertionError("; ".join(self._unexpected))
        remaining = self.remaining
        if remaining:
            shown = [_shorten(repr(step)) for step in remaining[:3]]
            if len(remaining) > 3:
                shown.append("…")
            raise AssertionError(
                f"{self._owner}: {len(remaining)} of {self._scripted()} never played: "
                f"{', '.join(shown)}; the code under test called less often than the script expects"
            )

    def _scripted(self) -> str:
        count = len(self._steps)
        return f"{count} {self._unit}{'' if count == 1 else 's'}"


class Scripted:
    """A double with a script.

    As a context manager it checks on exit that the whole script was played, unless an exception
    is already propagating.
    """

    _script: Script | None

    def assert_exhausted(self) -> None:
        """Check that every scripted step was used, and that there was no call beyond them.

        Raises:
            AssertionError: A step is left, or there was a call beyond the script, even if the code
                under test swallowed that call's error.
        """
        if self._script is not None:
            self._script.assert_exhausted()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.assert_exhausted()


async def _evaluate(step: Any, request: object) -> Any:
    """Return a step's value: raise an exception, call a sync or async function with the request."""
    if isinstance(step, BaseException) or (
        isinstance(step, type) and issubclass(step, BaseException)
    ):
        raise step
    if callable(step):
        step = step(request)
    return await step if inspect.isawaitable(step) else step


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


_DEFAULT_TEXT = "Mock response"
_CONTEXT_WINDOW = 100_000
_MAX_OUTPUT_TOKENS = 4_096
_BLOCKS = get_args(ContentBlockUnion)
_WORDS = re.compile(r"\S+\s*|\s+")

NamedCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool call as tool name and arguments. The provider generates its id."""

Part: TypeAlias = "str | ToolCall | NamedCall | ContentBlockUnion | BaseException"
"""One piece of an answer: text, a tool call, a content block, or, as the last piece, an error that
interrupts the stream."""

Answer: TypeAlias = "Part | Sequence[Part] | ChatResponse | BaseException | type[BaseException]"
"""The answer of one turn: pieces in order, a whole response, or an exception to raise."""


@final
@attrs.frozen
class Delayed:
    """A turn that is played after some seconds: ``Delayed(2.5, "at last")``."""

    seconds: float
    turn: Turn


Turn: TypeAlias = "Answer | Delayed | Callable[[Any], Answer | Awaitable[Answer]]"
"""One step of a script. A function is called with the request and returns the answer."""


@final
class MockProvider(Scripted):
    """Plays one turn per call to `complete` or `stream`. A stream arrives word by word.

        provider = MockProvider([("echo", {"text": "hi"}), "All done."])

    The first answer of this provider calls a tool, and the second one is text. Use it as a context
    manager, or call `assert_exhausted`, to find turns that were never requested. `script` is its
    short form.

    Args:
        turns: The answers, in order. An answer is text, a tool call as ``(name, arguments)`` or
            ToolCall, a list of such pieces and of content blocks, which may end with an error that
            interrupts the stream, a ChatResponse, an exception to raise, a function of the request,
            or one of these as `Delayed`. A function in place of the list answers every request.
            By default every call gets the same short text. An empty list allows no call.
        name: The provider's name.
        defaults: Additional ``defaults`` of `get_info`, such as another ``context_window``.
        delay: Seconds to wait before each answer.

    Attributes:
        requests: A copy of every request, in order.
        options: The keywords of every call, in order.
    """

    def __init__(
        self,
        turns: Sequence[Turn] | Callable[[Any], Answer | Awaitable[Answer]] | None = None,
        *,
        name: str = "mock",
        defaults: Mapping[str, Any] | None = None,
        delay: float = 0.0,
    ) -> None:
        if isinstance(turns, str):
            raise TypeError(
                f"MockProvider takes a list of turns, got the text {turns!r}; write [{turns!r}]"
            )
        self.name = name
        self.requests: list[Any] = []
        self.options: list[dict[str, Any]] = []
        self._defaults = dict(defaults or {})
        self._delay = delay
        self._ids = itertools.count(1)
        self._always: Any = turns if callable(turns) else _DEFAULT_TEXT
        steps = None if turns is None or callable(turns) else turns
        self._script: Script | None = (
            None if steps is None else Script(f"MockProvider {name!r}", steps, "turn")
        )

    def __repr__(self) -> str:
        return f"<MockProvider {self.name!r} called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """Number of requests."""
        return len(self.requests)

    @property
    def last_request(self) -> Any:
        """The latest request, or None before the first."""
        return self.requests[-1] if self.requests else None

    def get_info(self) -> ProviderInfo:
        """Describe a provider with all capabilities that needs no key."""
        defaults = {
            "model": "mock-model",
            "context_window": _CONTEXT_WINDOW,
            "max_output_tokens": _MAX_OUTPUT_TOKENS,
            **self._defaults,
        }
        capabilities = ["tools", "streaming"]
        return ProviderInfo(
            id=self.name, display_name="Mock", capabilities=capabilities, defaults=defaults
        )

    async def list_models(self) -> list[ModelInfo]:
        """Return the only model."""
        defaults = self.get_info().defaults
        return [
            ModelInfo(
                id=defaults["model"],
                display_name="Mock model",
                context_window=defaults["context_window"],
                max_output_tokens=defaults["max_output_tokens"],
                capabilities=["tools", "streaming"],
            )
        ]

    def estimate_cost(self, request: ChatRequest, **kwargs: Any) -> Decimal:
        """Return 0, because a script costs nothing."""
        return Decimal(0)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Play the next turn.

        Raises:
            AssertionError: The script has no turn left.
            BaseException: The turn is an exception.
        """
        response, error = await self._play("complete", request, kwargs)
        if error is not None:
            raise error
        return response

    @asynccontextmanager
    async def stream(
        self, request: ChatRequest, **kwargs: Any
    ) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        """Play the next turn word by word. The last chunk has the whole response.

        The stream raises the same exceptions as `complete`.
        """
        async with aclosing(self._chunks(request, kwargs)) as chunks:
            yield chunks

    async def _chunks(
        self, request: ChatRequest, kwargs: dict[str, Any]
    ) -> AsyncGenerator[StreamChunk, None]:
        response, error = await self._play("stream", request, kwargs)
        for index, block in enumerate(response.content):
            tool = block.name if isinstance(block, ToolCallBlock) else None
            yield StreamChunk(
                kind="block_start", index=index, block_type=block.type, tool_name=tool
            )
            for word in _WORDS.findall(_text_of(block)):
                await anyio.lowlevel.checkpoint()
                yield StreamChunk(kind="block_delta", index=index, block_type=block.type, text=word)
            if error is None or index < len(response.content) - 1:
                yield StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)
        if error is not None:
            raise error
        yield StreamChunk(kind="response", response=response)

    async def _play(
        self, method: str, request: ChatRequest, kwargs: dict[str, Any]
    ) -> tuple[ChatResponse, BaseException | None]:
        self.requests.append(copy.deepcopy(request))
        self.options.append(kwargs)
        turn: Any = self._always
        if self._script is not None:
            turn = self._script.take(f"{method}({_describe(request)})")
        if self._delay > 0:
            await anyio.sleep(self._delay)
        while callable(turn) or isinstance(turn, (Delayed, BaseException)):
            if isinstance(turn, Delayed):
                await anyio.sleep(turn.seconds)
                turn = turn.turn
            else:
                turn = await _evaluate(turn, request)
        if isinstance(turn, ChatResponse):
            return copy.deepcopy(turn), None
        parts = list(turn) if isinstance(turn, list) else [turn]
        error = parts.pop() if parts and isinstance(parts[-1], BaseException) else None
        return self._response(parts), error

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return the calls of a response, by default those among its content blocks."""
        if response.tool_calls is not None:
            return list(response.tool_calls)
        return _calls_among(response.content)

    def _response(self, parts: list[Any]) -> ChatResponse:
        blocks = [self._block(part) for part in parts]
        calls = _calls_among(blocks)
        words = sum(len(block.text.split()) for block in blocks if isinstance(block, TextBlock))
        sent, received = max(len(self.requests), 1) * 10, words + 5 * len(calls)
        return ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=Usage(input_tokens=sent, output_tokens=received, total_tokens=sent + received),
            finish_reason="tool_calls" if calls else "stop",
        )

    def _block(self, part: Any) -> Any:
        if isinstance(part, str):
            return TextBlock(text=part)
        if isinstance(part, ToolCall):
            return ToolCallBlock(id=part.id, name=part.name, input=part.arguments)
        if (
            isinstance(part, tuple)
            and len(part) == 2
            and isinstance(part[0], str)
            and isinstance(part[1], Mapping)
        ):
            return ToolCallBlock(id=f"call_{next(self._ids)}", name=part[0], input=dict(part[1]))
        if isinstance(part, _BLOCKS):
            return copy.deepcopy(part)
        raise TypeError(
            f"MockProvider {self.name!r} cannot play {part!r}; expected text, a ToolCall, "
            "(name, arguments), a content block, a list of those, a ChatResponse, an exception, "
            "a function, or Delayed"
        )


def script(*turns: Turn) -> MockProvider:
    """Return a model that plays these turns, and fails the test on one too many or too few.

        with script(("weather", {"city": "Oslo"}), "It rains.") as model:
            async with agent(model, tools=[weather]) as session:
                assert await session.execute("Will it rain?") == "It rains."

    An unexpected request raises an AssertionError in the turn, and again at the end of the block.
    Turns that were never played raise one at the end of the block. If you don't use a block, call
    ``model.assert_exhausted()``, or use the pytest fixture ``amplifier_script``. `MockProvider`
    describes the turns.
    """
    return MockProvider(turns)


def _calls_among(blocks: Sequence[Any]) -> list[ToolCall]:
    calls = (block for block in blocks if isinstance(block, ToolCallBlock))
    return [ToolCall(id=call.id, name=call.name, arguments=call.input) for call in calls]


def _text_of(block: Any) -> str:
    if isinstance(block, ToolCallBlock):
        return json.dumps(block.input)
    return str(getattr(block, "text", None) or getattr(block, "thinking", ""))


def _describe(request: object) -> str:
    messages = getattr(request, "messages", request)
    return f"{len(messages)} messages" if isinstance(messages, Sequence) else type(request).__name__


Response: TypeAlias = str | BaseException | Callable[[str], str | Awaitable[str]]
"""One answer: text, an exception to raise, or a function of the prompt."""

_OUTCOME = {"completed": "success", "cancelled": "cancelled", "error": "incomplete"}


@final
class ScriptedOrchestrator(Scripted):
    """Answers each prompt with the next response.

    A turn with a context stores the prompt and the answer. A turn with hooks emits
    ``execution:start``, ``execution:end`` and ``orchestrator:complete``.

    Args:
        responses: The answers, in order: text, an exception to raise, or a sync or async function
            of the prompt.
        delay: Seconds to wait before each answer.

    Attributes:
        calls: The arguments of every turn, by name.
    """

    def __init__(self, responses: Sequence[Response], *, delay: float = 0.0) -> None:
        if isinstance(responses, str):
            raise TypeError(
                f"ScriptedOrchestrator takes a list of responses, got the text {responses!r}; "
                f"write [{responses!r}]"
            )
        self.calls: list[dict[str, Any]] = []
        self._delay = delay
        self._script: Script = Script("ScriptedOrchestrator", responses, "response")

    def __repr__(self) -> str:
        return f"<ScriptedOrchestrator called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """Number of turns."""
        return len(self.calls)

    @property
    def prompts(self) -> list[str]:
        """The prompts, in order."""
        return [call["prompt"] for call in self.calls]

    async def execute(
        self,
        prompt: str,
        context: Any = None,
        providers: Any = None,
        tools: Any = None,
        hooks: Any = None,
        **kwargs: Any,
    ) -> str:
        """Play one turn.

        Raises:
            AssertionError: The script has no response left.
            BaseException: The response is an exception.
        """
        self.calls.append(
            {
                "prompt": prompt,
                "context": context,
                "providers": providers,
                "tools": tools,
                "hooks": hooks,
                **kwargs,
            }
        )
        response = self._script.take(f"execute({prompt!r})")
        text, status = "", "error"
        await _emit(hooks, EXECUTION_START, {"prompt": prompt})
        try:
            if context is not None:
                await context.add_message({"role": "user", "content": prompt})
            text = await self._answer(response, prompt)
            if context is not None:
                await context.add_message({"role": "assistant", "content": text})
            status = "completed"
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            await _emit(hooks, EXECUTION_END, {"response": text, "status": status})
            complete = {
                "orchestrator": type(self).__name__,
                "turn_count": 1,
                "status": _OUTCOME[status],
            }
            await _emit(hooks, ORCHESTRATOR_COMPLETE, complete)
        return text

    async def _answer(self, response: Any, prompt: str) -> str:
        if self._delay > 0:
            await anyio.sleep(self._delay)
        response = await _evaluate(response, prompt)
        if not isinstance(response, str):
            raise TypeError(f"ScriptedOrchestrator cannot answer with {response!r}; expected text")
        return response


async def _emit(hooks: Any, event: str, data: dict[str, Any]) -> None:
    if hooks is not None:
        await hooks.emit(event, data)


@final
class MockApprovalSystem(Scripted):
    """Answers questions from a script, or with the default of each question.

    Args:
        answers: The answers, in order, or a function of the prompt that answers every question. An
            exception is raised. By default each question gets its own default.
        delay: Seconds to wait before each answer.

    Attributes:
        requests: Prompt, options, timeout and default of every question.
    """

    def __init__(
        self,
        answers: Sequence[str | BaseException] | Callable[[str], Awaitable[str]] | None = None,
        *,
        delay: float = 0.0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self._delay = delay
        self._answer = answers if callable(answers) else None
        steps = None if answers is None or callable(answers) else answers
        self._script: Script | None = (
            None if steps is None else Script("MockApprovalSystem", steps, "answer")
        )

    def __repr__(self) -> str:
        return f"<MockApprovalSystem asked {len(self.requests)} times>"

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: ApprovalDefault
    ) -> str:
        """Record the question and return the next answer.

        Raises:
            AssertionError: The script has no answer left.
        """
        self.requests.append(
            {"prompt": prompt, "options": list(options), "timeout": timeout, "default": default}
        )
        answer: Any = "Allow" if default == "allow" else "Deny"
        if self._script is not None:
            answer = self._script.take(f"request_approval({prompt!r})")
        elif self._answer is not None:
            answer = await _evaluate(self._answer, prompt)
        if self._delay > 0:
            await anyio.sleep(self._delay)
        return str(await _evaluate(answer, prompt))
