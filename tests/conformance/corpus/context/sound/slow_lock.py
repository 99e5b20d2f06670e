"""Sound: a lock and a short sleep around everything."""

from __future__ import annotations
import copy, json
from typing import Any
import anyio
import anyio.lowlevel

__amplifier_module_type__ = "context"


def est(m: dict[str, Any]) -> int:
    return len(json.dumps(m)) // 4


class Ctx:
    def __init__(self, coordinator, config):
        self.c = coordinator
        self.limit = config.get("max_tokens", 50_000)
        self.items: list[dict] = []
        self.setup()

    def setup(self):
        self.lock = anyio.Lock()

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("role")
        async with self.lock:
            await anyio.sleep(0.002)
            self.items.append(copy.deepcopy(message))

    async def get_messages(self):
        return copy.deepcopy(self.items)

    async def set_messages(self, messages):
        self.items = copy.deepcopy(messages)

    async def clear(self):
        self.items = []

    async def get_messages_for_request(self, token_budget=None, provider=None):
        b = self.b(token_budget, provider)
        items = copy.deepcopy(self.items)
        if sum(map(est, items)) <= b:
            return items
        await self.c.hooks.emit("context:pre_compact", dict(message_count=len(items), token_count=sum(map(est, items))))
        out = self.cut(items, b)
        await self.c.hooks.emit("context:post_compact", dict(message_count=len(out), token_count=sum(map(est, out))))
        return out

    def b(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        if provider is not None:
            d = provider.get_info().defaults or {}
            if d.get("context_window") and d.get("max_output_tokens"):
                return d["context_window"] - d["max_output_tokens"] - 1000
        return self.limit

    def groups(self, items):
        gs, by = [], {}
        for i, m in enumerate(items):
            if m["role"] == "system":
                continue
            g = by.get(m.get("tool_call_id"))
            if g is None:
                g = []
                gs.append(g)
            g.append(i)
            for t in calls_in(m):
                by[t["id"]] = g
        gs.sort(key=lambda g: g[-1])
        return gs

    def cut(self, items, b):
        keep = {i for i, m in enumerate(items) if m["role"] == "system"}
        left = b - sum(est(items[i]) for i in keep)
        for n, g in enumerate(reversed(self.groups(items))):
            cost = sum(est(items[i]) for i in g)
            if n and cost > left:
                break
            left -= cost
            keep |= set(g)
        return [m for i, m in enumerate(items) if i in keep]


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


async def mount(coordinator, config):
    ctx = Ctx(coordinator, config or {})
    await coordinator.mount("context", ctx)
    return None
