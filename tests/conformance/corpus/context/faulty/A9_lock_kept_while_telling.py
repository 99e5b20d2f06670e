"""Every change is an entry of a log; the state is what the log gives, kept as a snapshot while nothing changes.

The lock stays locked when a view is cancelled.
"""

import json
import logging
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

__amplifier_module_type__ = "context"
logger = logging.getLogger("op-log")


class OpLogContext:
    def __init__(self, hooks, max_tokens):
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._log = []
        self._state = []
        self._upto = 0
        self._lock = anyio.Lock()

    def _current(self):
        for op, value in self._log[self._upto :]:
            if op == "add":
                self._state.append(value)
            else:
                self._state = list(value)
        self._upto = len(self._log)
        return self._state

    async def add_message(self, message):
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ValueError(f"role: expected a text, got {role!r}")
        async with self._lock:
            self._log.append(("add", json.dumps(message)))

    async def set_messages(self, messages):
        async with self._lock:
            self._log.append(("set", [json.dumps(message) for message in messages]))

    async def clear(self):
        async with self._lock:
            self._log.append(("set", []))

    async def get_messages(self):
        async with self._lock:
            return [json.loads(text) for text in self._current()]

    async def get_messages_for_request(self, token_budget=None, provider=None):
        await self._lock.acquire()
        texts = list(self._current())
        if not texts:
            self._lock.release()
            return []
        await anyio.lowlevel.checkpoint()
        self._lock.release()
        budget = self._budget(token_budget, provider)
        costs = [len(text) / 4 for text in texts]
        messages = [json.loads(text) for text in texts]
        if sum(costs) <= budget:
            return messages
        await self._hooks.emit("context:pre_compact", {"message_count": len(texts), "token_count": round(sum(costs))})
        chosen = self._choose(messages, costs, budget)
        total = round(sum(costs[at] for at in chosen))
        await self._hooks.emit("context:post_compact", {"message_count": len(chosen), "token_count": total})
        return [messages[at] for at in sorted(chosen)]

    def _budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        if provider is not None and hasattr(provider, "get_info"):
            told = provider.get_info().defaults or {}
            if told.get("context_window"):
                return told["context_window"] - told.get("max_output_tokens", 0) - 256
        return self._max_tokens

    @staticmethod
    def _choose(messages, costs, budget):
        chosen = {at for at, m in enumerate(messages) if m["role"] == "system"}
        spent = sum(costs[at] for at in chosen)
        block, waiting = [], set()
        for at in range(len(messages) - 1, -1, -1):
            message = messages[at]
            if message["role"] == "system":
                continue
            block.append(at)
            if message["role"] == "tool":
                waiting.add(message.get("tool_call_id"))
            waiting -= {call.get("id") for call in message.get("tool_calls") or []}
            content = message.get("content")
            if isinstance(content, list):
                waiting -= {part.get("id") for part in content if part.get("type") == "tool_call"}
            if waiting and at:
                continue
            cost = sum(costs[each] for each in block)
            if (
                spent + cost > budget
                and not chosen.isdisjoint(range(at + 1, len(messages)))
                and len(messages) - 1 in chosen
            ):
                break
            chosen.update(block)
            spent += cost
            block = []
        return chosen


@asynccontextmanager
async def mount(coordinator, config):
    context = OpLogContext(coordinator.hooks, (config or {}).get("max_tokens", 64_000))
    coordinator.mount("context", context)
    logger.debug("op-log context ready")
    yield context
