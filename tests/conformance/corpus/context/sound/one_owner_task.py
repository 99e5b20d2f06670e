"""Sound: a structured mount; one task owns the messages, and everybody else asks it through a stream."""

import copy
from contextlib import asynccontextmanager

import anyio

__amplifier_module_type__ = "context"


class OwnedContext:
    def __init__(self, send, hooks, config):
        self._send = send
        self._hooks = hooks
        self._limit = config.get("max_tokens", 80_000)

    async def _ask(self, what, value=None):
        answer = {"done": anyio.Event()}
        await self._send.send((what, value, answer))
        await answer["done"].wait()
        return answer.get("value")

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("'role' is missing")
        await self._ask("add", copy.deepcopy(message))

    async def get_messages(self):
        return await self._ask("get")

    async def set_messages(self, messages):
        await self._ask("set", copy.deepcopy(messages))

    async def clear(self):
        await self._ask("set", [])

    async def get_messages_for_request(self, token_budget=None, provider=None):
        messages = await self._ask("get")
        if token_budget is None and provider is not None:
            told = provider.get_info().defaults
            if "context_window" in told and "max_output_tokens" in told:
                token_budget = told["context_window"] - told["max_output_tokens"] - 2000
        budget = self._limit if token_budget is None else token_budget
        sizes = [size(message) for message in messages]
        if sum(sizes) <= budget:
            return messages
        counts = {"message_count": len(messages), "token_count": sum(sizes)}
        await self._hooks.emit("context:pre_compact", counts)
        keep = choose(messages, sizes, budget)
        counts = {"message_count": len(keep), "token_count": sum(sizes[at] for at in keep)}
        await self._hooks.emit("context:post_compact", counts)
        return [messages[at] for at in sorted(keep)]


def size(message):
    return 4 + len(str(message.get("content") or "")) // 4 + len(str(message.get("tool_calls") or "")) // 4


def choose(messages, sizes, budget):
    keep = {at for at, message in enumerate(messages) if message["role"] in ("system", "developer")}
    spent = sum(sizes[at] for at in keep)
    for at in range(len(messages) - 1, -1, -1):
        if at in keep:
            continue
        ids = {messages[at].get("tool_call_id")} | {call["id"] for call in calls_in(messages[at])}
        ids.discard(None)
        part = {at}
        for other, message in enumerate(messages):
            theirs = {call["id"] for call in calls_in(message)}
            if ids & theirs:
                part.add(other)
                ids |= theirs
        part |= {other for other, message in enumerate(messages) if message.get("tool_call_id") in ids}
        part -= keep
        cost = sum(sizes[each] for each in part)
        if spent + cost > budget and at != len(messages) - 1:
            break
        keep |= part
        spent += cost
    return keep


async def own(receive):
    messages = []
    async for what, value, answer in receive:
        if what == "add":
            messages.append(value)
        elif what == "set":
            messages = value
        else:
            answer["value"] = copy.deepcopy(messages)
        answer["done"].set()


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


@asynccontextmanager
async def mount(coordinator, config):
    send, receive = anyio.create_memory_object_stream(16)
    async with send, receive, anyio.create_task_group() as group:
        group.start_soon(own, receive)
        context = OwnedContext(send, coordinator.hooks, config)
        await coordinator.mount("session", context, name="context")
        yield context
        group.cancel_scope.cancel()
