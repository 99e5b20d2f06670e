"""The messages of a turn: for its requests, and for the conversation."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import repeat, takewhile
from typing import Any, Final, Literal, get_args

import anyio
import attrs

from amplifier._internal.json import JSON, copy_json
from amplifier.contracts import ContextManager, Coordinator, Provider, contain_errors
from amplifier.errors import ContractError, SessionStateError
from amplifier.models import (
    ChatResponse,
    ContextInjection,
    Message,
    Role,
    ToolCall,
    ToolResult,
    ToolSpec,
    to_dict,
)
from amplifier.models.prompts import attachments_of, read_prompt, text_of_prompt
from amplifier.models.turns import INTERRUPTED, assistant_message, result_message

from .._shared.session import run_shielded
from ..context import (
    CORRECTION,
    STEERING,
    call_ids,
    count_tokens,
    is_aside,
    missing_results,
    open_calls,
)


def checked_messages(context: ContextManager, method: str, messages: JSON) -> list[dict[str, JSON]]:
    """Return the messages from a method of a context.

    Raises:
        ContractError: The method didn't return a list.
    """
    if isinstance(messages, list):
        return messages
    name = type(context).__name__
    raise ContractError(
        f"context {name} returned {type(messages).__name__} from {method}(); "
        "expected a list of messages",
        module=name,
    )


_ROLES: Final = frozenset(get_args(Role))
_TEXTS: Final = frozenset({"role", "content", "name", "tool_call_id"})

INSTRUCTIONS = "system_prompt"
"""The ``source`` in the metadata of the system messages that a loop stores for its plan."""


def source_of(message: dict[str, JSON]) -> JSON:
    """Return the ``source`` in the metadata of a message, or None."""
    metadata = message.get("metadata")
    return metadata.get("source") if isinstance(metadata, dict) else None


def is_instruction(message: dict[str, JSON]) -> bool:
    """Return whether a loop has stored the message for its plan."""
    return message.get("role") == "system" and source_of(message) == INSTRUCTIONS


def _with_latest_instructions(messages: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Return the messages with only the latest instructions, at the beginning."""
    instructions = [
        message for message in messages if "metadata" in message and is_instruction(message)
    ]
    if not instructions or (instructions[0] is messages[0] and len(instructions) == 1):
        return messages
    return [instructions[-1], *(message for message in messages if not is_instruction(message))]


# ── prompt cache ─────────────────────────────────────────────────────────────────────────────────
# Until it compacts, a context that fulfills our contract only appends to its view, and tools and
# instructions don't change. So a break has one of three causes. The service reads everything after
# the break again, and charges for it.

_CHARS_PER_TOKEN: Final = 4.0


@attrs.frozen
class PrefixBreak:
    """A request that doesn't begin like the previous one.

    Attributes:
        reason: The first part that changed, in the order in which services read a request.
        same_messages: The number of messages at the beginning that are unchanged.
        tokens: The approximate number of tokens that were sent before and must be read again.
    """

    reason: Literal["tools", "instructions", "messages"]
    same_messages: int
    tokens: int


class RequestPrefix:
    """Compares each request of a loop with the one before it."""

    def __init__(self) -> None:
        self._tools: Any = None
        self._messages: list[dict[str, JSON]] = []

    def follow(
        self, tools: Sequence[ToolSpec] | None, messages: list[dict[str, JSON]]
    ) -> PrefixBreak | None:
        """Record the next request and compare it with the previous one.

        Args:
            tools: The tools of the request.
            messages: Its messages, without ephemeral injections.

        Returns:
            The break, or None if the request continues the previous one.
        """
        specs = [to_dict(tool) for tool in tools or ()]
        before, self._messages = self._messages, messages
        previous_specs, self._tools = self._tools, specs
        if not before:
            return None
        if previous_specs != specs:
            tokens = _tokens(previous_specs) + sum(map(_tokens, messages))
            return PrefixBreak("tools", 0, tokens)
        # This fast comparison covers the usual case. There may be thousands of messages.
        if messages[: len(before)] == before:
            return None
        same = sum(
            1
            for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, messages, strict=False))
        )
        changed = (*before[same : same + 1], *messages[same : same + 1])
        is_instruction = any(message.get("role") in ("system", "developer") for message in changed)
        return PrefixBreak(
            "instructions" if is_instruction else "messages",
            same,
            sum(map(_tokens, messages[same:])),
        )


def _tokens(value: JSON) -> int:
    return count_tokens(value, _CHARS_PER_TOKEN)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _models(messages: list[dict[str, JSON]]) -> list[Message]:
    """Return the messages as models that share nothing with them.

    Raises:
        ModelError: One of them isn't a valid message.
    """
    models: list[Any] = list(map(Message.__new__, repeat(Message, len(messages))))
    for model, message in zip(models, messages, strict=True):
        role, content = message.get("role"), message.get("content")
        if type(content) is not str or type(role) is not str or role not in _ROLES:
            _fill(model, message)
        # This does the same as the constructor in a tenth of the time.
        elif len(message) == 2:
            model.role = role
            model.content = content
            model.extra = {}
            model.name = model.tool_call_id = model.metadata = None
        elif message.keys() <= _TEXTS and {str}.issuperset(map(type, message.values())):
            model.role, model.content, model.metadata, model.extra = role, content, None, {}
            model.name, model.tool_call_id = message.get("name"), message.get("tool_call_id")
        else:
            _fill(model, message)
    return models


def _fill(model: Any, message: dict[str, JSON]) -> None:
    # A third-party context may return the messages that it stores, and change them later.
    fields = copy_json(message)
    if fields.get("content") is None:
        fields["content"] = ""
    model.__init__(**fields)


# A context returns copies, which belong to the loop. The provider gets separate models, so that its
# changes reach neither the context, nor a later request, nor a handler.


class RequestMessages:
    """The messages of a request, for events and for the provider.

    Args:
        messages: The messages from the context.
        prefix: The beginning of the latest request of the loop.
    """

    def __init__(self, messages: list[dict[str, JSON]], prefix: RequestPrefix) -> None:
        self._messages = self._lasting = _with_latest_instructions(messages)
        self._prefix = prefix

    def cache_break(self, tools: Sequence[ToolSpec] | None) -> PrefixBreak | None:
        """Return the break that keeps a service from using its cache for this request, or None."""
        return self._prefix.follow(tools, self._lasting)

    def for_event(self) -> list[dict[str, JSON]]:
        """Return the messages for an event's payload. Each handler gets a copy of the payload."""
        return self._messages

    def call_ids(self) -> set[object]:
        """Return the ids of the tool calls in the messages."""
        return {
            call_id
            for message in self._messages
            if message.get("role") == "assistant"
            for call_id in call_ids(message)
        }

    def add_ephemeral(self, injections: Sequence[ContextInjection]) -> None:
        """Add injections, which are shown once and never stored."""
        messages = self._messages = [*self._lasting] if injections else self._messages
        for item in injections:
            last = messages[-1] if messages else {}
            if item.append_to_last_tool_result and last.get("role") == "tool":
                content = last.get("content")
                if isinstance(content, list):
                    joined: JSON = [*content, {"type": "text", "text": item.content}]
                else:
                    joined = f"{content or ''}\n\n{item.content}"
                messages[-1] = {**last, "content": joined}
            else:
                messages.append({"role": item.role, "content": item.content})

    def for_provider(self) -> list[Message]:
        """Return the messages for the provider.

        Raises:
            ModelError: One of them isn't a valid message.
        """
        return _models(self._messages)


UNANSWERED = "[interrupted: the turn ended before there was an answer]"

_REFUSED = "[{} {!r} left out: the service refused the prompt]"
_SETTLE_TIMEOUT = 10.0
_MAX_STEERING_MESSAGES = 100


class Steering:
    """Messages for the running turn, accepted until it has its answer.

    No message is lost silently.

    Attributes:
        waiting: The messages that the turn hasn't read yet, oldest first.
    """

    def __init__(self) -> None:
        self.waiting: deque[str] = deque()
        self._is_open = False

    def open(self, is_open: bool = True) -> None:
        """Start accepting messages, or stop with False when the turn ends or has its answer."""
        self.waiting.clear()
        self._is_open = is_open

    def add(self, message: object) -> None:
        """Add a message.

        Raises:
            SessionStateError: No turn would read it, or too many messages are already waiting.
            ValueError: The message isn't text, or it is empty.
        """
        if not isinstance(message, str) or not message.strip():
            raise ValueError(f"expected a message that is text, got {message!r:.80}")
        if not self._is_open:
            raise SessionStateError(
                "no turn is running that would read the message; begin one with execute(prompt)"
            )
        if len(self.waiting) >= _MAX_STEERING_MESSAGES:
            raise SessionStateError(
                f"{_MAX_STEERING_MESSAGES} messages are waiting for the next step already; "
                "wait, or stop the turn"
            )
        self.waiting.append(message)


def closing_messages(stored: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Return the messages that close a turn without an answer from the model.

    They are results for open calls, and a note in place of the answer.
    """
    # Instructions and messages injected by hooks don't show whether there was an answer.
    last: dict[str, JSON] = next(
        (message for message in reversed(stored) if not is_aside(message)), {}
    )
    role = last.get("role")
    results = missing_results(stored, INTERRUPTED) if role in ("assistant", "tool") else []
    if not results and role not in ("user", "tool", "function"):
        return []
    return [*results, {"role": "assistant", "content": UNANSWERED}]


@attrs.frozen
class UnfinishedTurn:
    """A turn that was interrupted.

    Attributes:
        prompt: The text of its prompt. Empty if it has none.
        attachments: Descriptions of the other blocks of its prompt.
        iterations: The number of answers from the model.
        calls: The calls of the latest answer that have no result.
    """

    prompt: str
    attachments: list[dict[str, JSON]]
    iterations: int
    calls: list[ToolCall]


def unfinished_turn(stored: list[dict[str, JSON]]) -> UnfinishedTurn | None:
    """Return the turn at the end of a conversation, if it has no answer yet."""
    turn: list[dict[str, JSON]] = []
    for message in reversed(stored):
        if is_aside(message):
            continue
        turn.insert(0, message)
        if message.get("role") == "user" and source_of(message) not in (CORRECTION, STEERING):
            break
    if not turn or turn[0].get("role") != "user":
        return None
    calls = open_calls(turn)
    if turn[-1].get("role") == "assistant" and not calls:
        return None
    prompt, attachments = _describe_prompt(turn[0].get("content"))
    return UnfinishedTurn(
        prompt=prompt,
        attachments=attachments,
        iterations=sum(message.get("role") == "assistant" for message in turn),
        calls=[
            ToolCall(id=str(call.id), name=call.name or "", arguments=_input(call.arguments))
            for call in calls
        ],
    )


def _describe_prompt(content: JSON) -> tuple[str, list[dict[str, JSON]]]:
    """Return the text of a stored prompt, and its attachments. Other hosts use other formats."""
    if isinstance(content, list):
        with suppress(TypeError, ValueError):
            blocks = read_prompt(content)
            if isinstance(blocks, list):
                return text_of_prompt(blocks), attachments_of(blocks)
    return content if isinstance(content, str) else "", []


def lacks_instructions(stored: list[dict[str, JSON]], text: str | None) -> bool:
    """Return whether the instructions differ from those in the conversation.

    A system message from the application at the beginning replaces any instructions.
    """
    contents = [message.get("content") for message in stored if is_instruction(message)]
    if contents or not text:
        return bool(text) and contents[-1] != text
    return all(source_of(message) == "hook" for message in itertools.takewhile(is_aside, stored))


def _input(arguments: JSON) -> dict[str, JSON]:
    """Return the input of a stored call. Some contexts store it as text, like the service."""
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    return copy_json(arguments) if isinstance(arguments, dict) else {}


# The stored messages form a valid conversation even if the turn is cancelled. The assistant's
# message comes first. One result for each of its calls follows, in the order of the calls.


class Transcript:
    """Reads and writes the conversation for one turn.

    Args:
        context: The context with the conversation.
        coordinator: The coordinator of the session.
        prefix: The beginning of the latest request of the loop.
    """

    def __init__(
        self, context: ContextManager, coordinator: Coordinator, prefix: RequestPrefix
    ) -> None:
        self._context = context
        self._prefix = prefix
        self._coordinator = coordinator
        self._label = f"context {type(context).__name__}"
        self._open: list[ToolCall] = []

    async def stored(self) -> list[dict[str, JSON]]:
        """Return the whole conversation."""
        with contain_errors(self._label):
            return checked_messages(
                self._context, "get_messages", await self._context.get_messages()
            )

    async def close_unanswered(
        self,
        stored: list[dict[str, JSON]],
        known_result: Callable[[ToolCall], Awaitable[ToolResult | None]],
    ) -> None:
        """Close an earlier turn without an answer, which was stopped or reached its limit.

        Otherwise there would be two user messages in a row, which some services refuse.

        Args:
            stored: The whole conversation.
            known_result: Returns the result of a call whose result is missing in the conversation
                but known elsewhere.
        """
        calls = {call.id: call for call in open_calls(stored)}
        for message in closing_messages(stored):
            if (open_call := calls.get(message.get("tool_call_id", ""))) is not None:
                call = ToolCall(
                    id=str(open_call.id),
                    name=open_call.name or "",
                    arguments=_input(open_call.arguments),
                )
                if (result := await known_result(call)) is not None:
                    message = result_message(call, result)  # noqa: PLW2901
            await self.add(message)

    async def for_request(self, provider: Provider) -> RequestMessages:
        """Return the messages of the next request."""
        with contain_errors(self._label):
            messages = await self._context.get_messages_for_request(provider=provider)
            return RequestMessages(
                checked_messages(self._context, "get_messages_for_request", messages), self._prefix
            )

    async def add(self, message: dict[str, JSON]) -> None:
        """Store a message that is neither an answer nor a result."""
        with contain_errors(self._label):
            await self._context.add_message(message)

    async def add_answer(self, response: ChatResponse, calls: list[ToolCall]) -> None:
        """Store the assistant's message. From here on, each of its calls needs a result."""
        self._open = list(calls)
        await self.add(assistant_message(response, calls))

    async def withdraw_attachments(self, blocks: list[dict[str, JSON]]) -> None:
        """Replace the attachments of a prompt that the service refused with notes.

        Otherwise every later request would fail as well.
        """
        notes = [
            block
            if block["type"] == "text"
            else {"type": "text", "text": _REFUSED.format(block["type"], block.get("title") or "")}
            for block in blocks
        ]
        stored = await self.stored()
        for message in reversed(stored):
            if message.get("role") == "user" and message.get("content") == blocks:
                message["content"] = notes
                with contain_errors(self._label):
                    await self._context.set_messages(stored)
                return

    def reopen(self, calls: list[ToolCall]) -> None:
        """Continue with an answer that is already stored. Each of its calls needs a result."""
        self._open = list(calls)

    async def add_result(self, call: ToolCall, result: ToolResult) -> None:
        """Store the result of a call. The results of earlier calls are already stored."""
        await self.add(result_message(call, result))
        self._open.remove(call)

    async def settle(self, results: dict[str, ToolResult]) -> None:
        """Store the known result, or a note, for each call that still needs one.

        This is for a turn that ends early. The context is read first, because a cancelled write may
        have stored a result.
        """
        if self._open:
            await run_shielded(
                self._coordinator, self._settle, results, name="store the results of a turn"
            )

    async def _settle(self, results: dict[str, ToolResult]) -> None:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _SETTLE_TIMEOUT):
            open_ids = {call.id for call in open_calls(await self.stored())}
            for call in self._open:
                if call.id in open_ids:
                    interrupted = ToolResult(
                        success=False, error={"message": INTERRUPTED, "type": "Interrupted"}
                    )
                    await self.add(result_message(call, results.get(call.id, interrupted)))
            self._open = []
