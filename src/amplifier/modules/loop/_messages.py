"""The messages of a turn: those of a request, in the forms that events and the provider get, and those that the turn stores.

A context returns copies, which belong to the loop. The provider gets models of its own: nothing that it does with them reaches the
context, a later request or a handler.

What a turn stores keeps the conversation valid when the turn is cancelled: the assistant's message comes before its tool results;
results follow in the order of the calls, one for each, whatever happens.
"""

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

from amplifier._internal.json import copy_json
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


def checked_messages(context: ContextManager, method: str, messages: Any) -> list[dict[str, Any]]:
    """What a method of a context returned.

    Raises:
        ContractError: It is no list.
    """
    if isinstance(messages, list):
        return messages
    name = type(context).__name__
    raise ContractError(
        f"context {name} returned {type(messages).__name__} from {method}(); expected a list of messages",
        module=name,
    )


_ROLES: Final = frozenset(get_args(Role))
_TEXTS: Final = frozenset({"role", "content", "name", "tool_call_id"})

INSTRUCTIONS = "system_prompt"
"""The ``source``, in the metadata, of the system messages that a loop stores for its plan."""


def source_of(message: dict[str, Any]) -> Any:
    """Who stored a message, where its metadata has it."""
    metadata = message.get("metadata")
    return metadata.get("source") if isinstance(metadata, dict) else None


def is_instruction(message: dict[str, Any]) -> bool:
    """Whether a loop has stored it for its plan."""
    return message.get("role") == "system" and source_of(message) == INSTRUCTIONS


def _with_latest_instructions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The instructions that were stored last, at the beginning, in place of all that were stored before."""
    given = [message for message in messages if "metadata" in message and is_instruction(message)]
    if not given or (given[0] is messages[0] and len(given) == 1):
        return messages
    return [given[-1], *(message for message in messages if not is_instruction(message))]


# ── what a service's prompt cache can use again ──────────────────────────────────────────────────
# A context that follows our contract adds at the end of its view until a compaction; tools and instructions stay as they are. So
# a break has one of three reasons, and each is worth knowing: it costs the price of reading everything behind it anew.

_CHARS_PER_TOKEN: Final = 4.0


@attrs.frozen
class PrefixBreak:
    """A request that does not begin as the one before did.

    Attributes:
        reason: What changed first, in the order in which services read it.
        same_messages: How many messages at the beginning are the same.
        tokens: What was sent before and has to be read anew, roughly.
    """

    reason: Literal["tools", "instructions", "messages"]
    same_messages: int
    tokens: int


class RequestPrefix:
    """Compares each request of a loop with the one before it."""

    def __init__(self) -> None:
        self._tools: Any = None
        self._messages: list[dict[str, Any]] = []

    def follow(
        self, tools: Sequence[ToolSpec] | None, messages: list[dict[str, Any]]
    ) -> PrefixBreak | None:
        """Take the next request, without what is shown once only; returns what of the one before it cannot be used again."""
        described = [to_dict(tool) for tool in tools or ()]
        before, self._messages = self._messages, messages
        known, self._tools = self._tools, described
        if not before:
            return None
        if known != described:
            return PrefixBreak("tools", 0, _tokens(known) + sum(map(_tokens, messages)))
        if messages[: len(before)] == before:  # thousands of them, and nearly always
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


def _tokens(value: Any) -> int:
    return count_tokens(value, _CHARS_PER_TOKEN)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _models(messages: list[dict[str, Any]]) -> list[Message]:
    """The messages as models that share nothing with them.

    Raises:
        ModelError: One of them is no message that a provider would understand.
    """
    models: list[Any] = list(map(Message.__new__, repeat(Message, len(messages))))
    for model, message in zip(models, messages, strict=True):
        role, content = message.get("role"), message.get("content")
        if type(content) is not str or type(role) is not str or role not in _ROLES:
            _fill(model, message)
        elif len(message) == 2:  # what the constructor makes of texts, in a tenth of the time
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


def _fill(model: Any, message: dict[str, Any]) -> None:
    given = copy_json(
        message
    )  # a context of third parties may return what it stores, and change it later
    model.__init__(**(given if given.get("content") is not None else {**given, "content": ""}))


class RequestMessages:
    """What the model is to be shown.

    Args:
        messages: What the context returned.
        prefix: How the latest request of the loop began.
    """

    def __init__(self, messages: list[dict[str, Any]], prefix: RequestPrefix) -> None:
        self._messages = self._lasting = _with_latest_instructions(messages)
        self._prefix = prefix

    def cache_break(self, tools: Sequence[ToolSpec] | None) -> PrefixBreak | None:
        """What a service's cache has of the request before and cannot use for this one."""
        return self._prefix.follow(tools, self._lasting)

    def for_event(self) -> list[dict[str, Any]]:
        """For the payload of an event, of which each handler gets a copy."""
        return self._messages

    def call_ids(self) -> set[Any]:
        """The ids of the tool calls in them."""
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
                    joined: Any = [*content, {"type": "text", "text": item.content}]
                else:
                    joined = f"{content or ''}\n\n{item.content}"
                messages[-1] = {**last, "content": joined}
            else:
                messages.append({"role": item.role, "content": item.content})

    def for_provider(self) -> list[Message]:
        """As the provider gets them.

        Raises:
            ModelError: One of them is no message that a provider would understand.
        """
        return _models(self._messages)


UNANSWERED = "[interrupted: the turn ended before there was an answer]"

_REFUSED = "[{} {!r} left out: the service refused the prompt]"
_SETTLING_SECONDS = 10.0


_MOST = 100


class Steering:
    """The messages that wait. They are taken while a turn runs and until it has its answer: none is lost without an error.

    Attributes:
        waiting: The oldest first.
    """

    def __init__(self) -> None:
        self.waiting: deque[str] = deque()
        self._is_open = False

    def open(self, is_open: bool = True) -> None:
        """A turn begins; with False, it has its answer or ends without one."""
        self.waiting.clear()
        self._is_open = is_open

    def add(self, message: object) -> None:
        """Take a message.

        Raises:
            SessionStateError: No turn would read it, or too many wait already.
            ValueError: It is no text, or empty.
        """
        if not isinstance(message, str) or not message.strip():
            raise ValueError(f"expected a message that is text, got {message!r:.80}")
        if not self._is_open:
            raise SessionStateError(
                "no turn is running that would read the message; begin one with execute(prompt)"
            )
        if len(self.waiting) >= _MOST:
            raise SessionStateError(
                f"{_MOST} messages wait for the next step already; wait, or stop the turn"
            )
        self.waiting.append(message)


def closing_messages(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What closes a turn that ended without an answer of the model: results for open calls, and a note in place of the answer.

    Instructions and injections of hooks do not show whether there was an answer; the last message before them does.
    """
    last: dict[str, Any] = next(
        (message for message in reversed(stored) if not is_aside(message)), {}
    )
    role = last.get("role")
    results = missing_results(stored, INTERRUPTED) if role in ("assistant", "tool") else []
    if not results and role not in ("user", "tool", "function"):
        return []
    return [*results, {"role": "assistant", "content": UNANSWERED}]


@attrs.frozen
class UnfinishedTurn:
    """Where a turn was cut off.

    Attributes:
        prompt: The text that began it; empty if there was none.
        attachments: What else there was, described.
        iterations: How often the model has answered.
        calls: Those of the latest answer that have no result.
    """

    prompt: str
    attachments: list[dict[str, Any]]
    iterations: int
    calls: list[ToolCall]


def unfinished_turn(stored: list[dict[str, Any]]) -> UnfinishedTurn | None:
    """The turn at the end of a conversation, if it has no answer yet."""
    turn: list[dict[str, Any]] = []
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
    prompt, attachments = _described(turn[0].get("content"))
    return UnfinishedTurn(
        prompt=prompt,
        attachments=attachments,
        iterations=sum(message.get("role") == "assistant" for message in turn),
        calls=[
            ToolCall(id=str(call.id), name=call.name or "", arguments=_input(call.arguments))
            for call in calls
        ],
    )


def _described(content: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stored prompt, and its attachments; other hosts store other things."""
    if isinstance(content, list):
        with suppress(TypeError, ValueError):
            blocks = read_prompt(content)
            if isinstance(blocks, list):
                return text_of_prompt(blocks), attachments_of(blocks)
    return content if isinstance(content, str) else "", []


def lacks_instructions(stored: list[dict[str, Any]], text: str | None) -> bool:
    """Whether other instructions were in force until now; a system message of the application at the beginning is in place of any."""
    given = [message.get("content") for message in stored if is_instruction(message)]
    if given or not text:
        return bool(text) and given[-1] != text
    return all(source_of(message) == "hook" for message in itertools.takewhile(is_aside, stored))


def _input(arguments: Any) -> dict[str, Any]:
    """The input of a stored call; some contexts keep it as the text that a service sent."""
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    return copy_json(arguments) if isinstance(arguments, dict) else {}


class Transcript:
    """The part of the conversation that one turn is responsible for; everything that it reads and writes goes through here.

    Args:
        context: Where the conversation is kept.
        coordinator: The session's.
        prefix: How the latest request of the loop began.
    """

    def __init__(
        self, context: ContextManager, coordinator: Coordinator, prefix: RequestPrefix
    ) -> None:
        self._context = context
        self._prefix = prefix
        self._coordinator = coordinator
        self._who = f"context {type(context).__name__}"
        self._open: list[ToolCall] = []

    async def stored(self) -> list[dict[str, Any]]:
        """The whole conversation."""
        with contain_errors(self._who):
            return checked_messages(
                self._context, "get_messages", await self._context.get_messages()
            )

    async def close_unanswered(
        self,
        stored: list[dict[str, Any]],
        known_result: Callable[[ToolCall], Awaitable[ToolResult | None]],
    ) -> None:
        """Close what an earlier turn left without an answer.

        A turn that was stopped, a process that died and the iteration limit leave such an end. The next prompt would make
        two user messages in a row, which some services refuse.

        Args:
            stored: The whole conversation.
            known_result: Returns the result of a call that has none in the conversation, if it is known elsewhere.
        """
        calls = {call.id: call for call in open_calls(stored)}
        for message in closing_messages(stored):
            if (found := calls.get(message.get("tool_call_id", ""))) is not None:
                call = ToolCall(
                    id=str(found.id), name=found.name or "", arguments=_input(found.arguments)
                )
                if (result := await known_result(call)) is not None:
                    message = result_message(call, result)  # noqa: PLW2901
            await self.add(message)

    async def for_request(self, provider: Provider) -> RequestMessages:
        """What the model is to be shown."""
        with contain_errors(self._who):
            given = await self._context.get_messages_for_request(provider=provider)
            return RequestMessages(
                checked_messages(self._context, "get_messages_for_request", given), self._prefix
            )

    async def add(self, message: dict[str, Any]) -> None:
        """Store a message that is neither an answer nor a result."""
        with contain_errors(self._who):
            await self._context.add_message(message)

    async def add_answer(self, response: ChatResponse, calls: list[ToolCall]) -> None:
        """Store the assistant's message; from here on its calls are owed results."""
        self._open = list(calls)
        await self.add(assistant_message(response, calls))

    async def withdraw_attachments(self, blocks: list[dict[str, Any]]) -> None:
        """The service refused the latest prompt: notes take the place of its attachments, or every later request would fail, too."""
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
                with contain_errors(self._who):
                    await self._context.set_messages(stored)
                return

    def reopen(self, calls: list[ToolCall]) -> None:
        """The turn goes on with an answer that is stored already: its calls are owed results."""
        self._open = list(calls)

    async def add_result(self, call: ToolCall, result: ToolResult) -> None:
        """Store the result of a call; the results of the calls before it are stored."""
        await self.add(result_message(call, result))
        self._open.remove(call)

    async def settle(self, results: dict[str, ToolResult]) -> None:
        """The turn is being left: give every call that is still owed a result what is known, or a note.

        What a cancelled write has stored is not known, so the context itself is asked first.
        """
        if self._open:
            await run_shielded(
                self._coordinator, self._settle, results, name="store the results of a turn"
            )

    async def _settle(self, results: dict[str, ToolResult]) -> None:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _SETTLING_SECONDS):
            owed = {call.id for call in open_calls(await self.stored())}
            for call in self._open:
                if call.id in owed:
                    interrupted = ToolResult(
                        success=False, error={"message": INTERRUPTED, "type": "Interrupted"}
                    )
                    await self.add(result_message(call, results.get(call.id, interrupted)))
            self._open = []
