"""One file of the session, replaced in one go; the newest whole turns that fit."""

import json
from pathlib import Path

import anyio
import anyio.to_thread

__amplifier_module_type__ = "context"


class FileMemory:
    def __init__(self, path, hooks):
        self.path = path
        self.hooks = hooks
        self.lock = anyio.Lock()
        self.messages = []

    def load(self):
        if self.path.exists():
            self.messages = [json.loads(line) for line in self.path.read_text("utf-8").split("\n") if line]

    def save(self, messages):
        beside = self.path.with_name(f"{self.path.name}.new")
        beside.write_text("".join(json.dumps(message) + "\n" for message in messages), "utf-8")
        beside.replace(self.path)

    async def store(self, messages):
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.save, messages)
            self.messages = messages

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("a message needs a role")
        async with self.lock:
            await self.store([*self.messages, json.loads(json.dumps(message))])

    async def get_messages(self):
        return json.loads(json.dumps(self.messages))

    async def set_messages(self, messages):
        async with self.lock:
            await self.store(json.loads(json.dumps(messages)))

    async def clear(self):
        async with self.lock:
            await self.store([])

    async def get_messages_for_request(self, token_budget=None, provider=None):
        messages = await self.get_messages()
        if token_budget is None and provider is not None:
            defaults = provider.get_info().defaults or {}
            if defaults.get("context_window"):
                token_budget = defaults["context_window"] - defaults.get("max_output_tokens", 0) - 1000
        budget = 100_000 if token_budget is None else token_budget
        costs = [len(json.dumps(message)) // 4 for message in messages]
        if sum(costs) <= budget:
            return messages
        await self.hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": sum(costs)})
        shown = self.choose(messages, costs, budget)
        counts = {"message_count": len(shown), "token_count": sum(costs[at] for at in shown)}
        await self.hooks.emit("context:post_compact", counts)
        return [messages[at] for at in shown]

    @staticmethod
    def choose(messages, costs, budget):
        system = [at for at, message in enumerate(messages) if message["role"] == "system"]
        left = budget - sum(costs[at] for at in system)
        start, owed = None, set()
        for at in range(len(messages) - 1, -1, -1):
            if at in system:
                continue
            left -= costs[at]
            if left < 0 and start is not None:
                break
            owed |= {messages[at]["tool_call_id"]} if messages[at]["role"] == "tool" else set()
            owed -= {call["id"] for call in messages[at].get("tool_calls") or []}
            if not owed:
                start = at
        start = 0 if start is None else start
        return sorted({*system, *range(start, len(messages))})


async def mount(coordinator, config):
    path = Path(config.get("path") or Path.home() / f"memory-{coordinator.session_id}.jsonl")
    context = FileMemory(path, coordinator.hooks)
    await anyio.to_thread.run_sync(context.load)
    await coordinator.mount("context", context)
