"""Tools that a client runs itself, and the conversations that wait for its results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from amplifier.contracts import current_call
from amplifier.events import PROVIDER_REQUEST
from amplifier.kernel import AmplifierSession
from amplifier.models import HookResult, ToolCall, ToolResult

WAITING: Final = "[the client has not sent the result of this call]"
_FIRST: Final = -(2**31)
_MAX_CONVERSATIONS: Final = 1000
_MAX_BYTES: Final = 64 * 1024 * 1024


@attrs.frozen(kw_only=True)
class ClientTool:
    """A tool as a client describes it.

    Attributes:
        name: The name of the tool.
        description: The description for the model.
        input_schema: The JSON Schema of its input. A call that doesn't match is refused without the
            client.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = attrs.field(factory=lambda: {"type": "object", "properties": {}})


class _OfferedTool:
    """A client's tool in the form that a session mounts.

    Attributes:
        runs_at_client: Always True. Nothing runs here, so a call needs no permission. The client
            decides whether to run it.
    """

    runs_at_client: bool = True
    repeatable: bool = True

    def __init__(self, tool: ClientTool, tools: ClientTools) -> None:
        self.name = tool.name
        self.description = tool.description
        self.input_schema = tool.input_schema
        self._tools = tools

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — contract
        """Record the call. The client will send its result."""
        call = current_call()
        return self._tools.note(
            ToolCall(id="" if call is None else call.call_id, name=self.name, arguments=input)
        )


# A call to a client's tool ends the turn, and the client's next request brings the result. In the
# meantime the turn isn't kept open, but its conversation is kept under a name with which the next
# request finds it. `with_results` puts the results in place, and the turn continues as an
# interrupted one does. The agent's own tools that the model called with them have run to their end.


class ClientTools:
    """The client's tools in one turn.

    Args:
        tools: The tools that the client offers.
        in_parallel: True if the client accepts several calls at once.

    Attributes:
        tools: The tools that the client offers.
        is_waiting: True once the turn has ended because calls wait for the client.
    """

    def __init__(self, tools: Sequence[ClientTool] = (), *, in_parallel: bool = True) -> None:
        self.tools: tuple[ClientTool, ...] = tuple(tools)
        self.is_waiting: bool = False
        self._in_parallel = in_parallel
        self._calls: dict[str, ToolCall] = {}

    def __repr__(self) -> str:
        return f"<ClientTools: {len(self.tools)} tools, {len(self._calls)} calls>"

    def clash(self, session: AmplifierSession) -> str | None:
        """Return the name of a tool that the agent also has, or None."""
        return next(
            (
                tool.name
                for tool in self.tools
                if session.coordinator.get("tools", tool.name) is not None
            ),
            None,
        )

    async def offer(self, session: AmplifierSession) -> None:
        """Offer the tools to the model of an open session, which serves a single turn."""
        if not self.tools:
            return
        coordinator = session.coordinator

        async def stop(event: str, data: dict[str, Any]) -> HookResult:
            if self._calls and not self.is_waiting:
                self.is_waiting = True
                coordinator.cancellation.request_graceful(reason="calls wait for the client")
            return HookResult()

        for tool in self.tools:
            await coordinator.mount("tools", _OfferedTool(tool, self), name=tool.name)
        coordinator.hooks.register(
            PROVIDER_REQUEST, stop, priority=_FIRST, name="live.client_tools"
        )

    def note(self, call: ToolCall) -> ToolResult:
        """Record a call by the model. Return a placeholder for the client's result."""
        if self._calls and not self._in_parallel:
            message = (
                "not called: the client takes one call at a time; call the tool again when it has "
                "the result"
            )
            return ToolResult(success=False, error={"message": message, "type": "OneAtATime"})
        self._calls[call.id] = call
        return ToolResult(output=WAITING)

    def calls_in(self, messages: Iterable[Mapping[str, Any]]) -> list[ToolCall]:
        """Return the calls that wait for the client, in the order of the model's answer."""
        order = [call.get("id") for message in messages for call in message.get("tool_calls") or ()]
        return sorted(
            self._calls.values(),
            key=lambda call: order.index(call.id) if call.id in order else len(order),
        )


def with_results(
    messages: list[dict[str, Any]], results: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a conversation with the client's results, by the ids of the latest answer's calls."""
    filled, left = list(messages), dict(results)
    for at in range(len(filled) - 1, -1, -1):
        message = filled[at]
        if message.get("role") == "tool" and message.get("tool_call_id") in left:
            filled[at] = {**message, "content": left.pop(message["tool_call_id"])}
    return filled


class KeptMessages:
    """The latest conversations, by name.

    The oldest conversations are deleted when all together are too many or too large.
    """

    def __init__(self, *, most: int = _MAX_CONVERSATIONS, most_bytes: int = _MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, bytes] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<KeptMessages: {len(self._kept)} conversations, {self._bytes} bytes>"

    @staticmethod
    def name_of(messages: object) -> str:
        """Return the name of the conversation that continues these messages."""
        return hashlib.sha256(orjson.dumps(messages, default=str)).hexdigest()

    def keep(self, name: str, messages: list[dict[str, Any]]) -> None:
        """Keep a conversation."""
        self.forget(name)
        written = self._kept[name] = orjson.dumps(messages, default=str)
        self._bytes += len(written)
        while len(self._kept) > self._most or (
            self._bytes > self._most_bytes and len(self._kept) > 1
        ):
            self.forget(next(iter(self._kept)))

    def find(self, name: str) -> list[dict[str, Any]] | None:
        """Return the conversation of this name, or None."""
        written = self._kept.get(name)
        messages: list[dict[str, Any]] | None = None if written is None else orjson.loads(written)
        return messages

    def forget(self, name: str) -> bool:
        """Delete a conversation. Return whether there was one."""
        written = self._kept.pop(name, None)
        self._bytes -= len(written or b"")
        return written is not None
